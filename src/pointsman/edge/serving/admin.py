"""The admin port: metrics, status, control. Loopback by default; it asks for a key where one is configured."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from pointsman.core.model.errors import PolicyError
from pointsman.edge.serving.admin_auth import AdminAuth
from pointsman.edge.serving.indexer import Indexer, IndexerQueryError
from pointsman.edge.serving.policies import ActivePolicy
from pointsman.edge.serving.status import Status
from pointsman.edge.serving.tls import ListenTls
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.listening import listen_error

MAX_BODY_BYTES = 16 * 2**20
"""A query of the indexer carries a whole prompt's tokens."""


class PolicyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `PUT /v1/policy`."""

    policy: str


class AdminServer:
    """Metrics, status, policies, health, and the public indexer's queries."""

    def __init__(
        self,
        policy: ActivePolicy,
        status: Callable[[], Status],
        indexer: Indexer,
        collectors: Iterable[Collector],
        accepting: Callable[[], bool],
        routes: Iterable[web.RouteDef] = (),
        auth: AdminAuth | None = None,
        tls: ListenTls | None = None,
    ) -> None:
        self._policy = policy
        self._status = status
        self._indexer = indexer
        self._accepting = accepting
        self._routes = tuple(routes)
        self._auth = auth or AdminAuth(None)
        self._tls = tls
        self._registry = CollectorRegistry(auto_describe=False)
        for collector in collectors:
            self._registry.register(collector)
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int, socks: Sequence[socket.socket] = ()) -> None:
        """Listen, or accept at `socks`, where somebody listens. Raises EngineError that names a port that is taken."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._auth.middleware])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/status", self._get_status),
                web.get("/v1/policies", self._get_policies),
                web.put("/v1/policy", self._put_policy),
                web.post("/query", self._query),
                web.post("/query_by_hash", self._query_by_hash),
                *self._routes,
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        self._runner = runner
        context = None if self._tls is None else self._tls.context
        sites: list[web.BaseSite] = [web.SockSite(runner, sock, ssl_context=context) for sock in socks]
        try:
            for site in sites or [web.TCPSite(runner, host, port, ssl_context=context)]:
                await site.start()
        except OSError as error:
            await self.close()
            raise listen_error(host, port, "--admin-port", error) from error
        self.port = runner.addresses[0][1]

    async def stop_listening(self) -> None:
        """Accept no more connections; those that there are go on."""
        if self._runner is not None:
            for site in tuple(self._runner.sites):
                await site.stop()

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, request: web.Request) -> web.Response:
        return _json({"status": "ok" if self._accepting() else "stopping"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _get_status(self, request: web.Request) -> web.Response:
        return _json(self._status())

    async def _get_policies(self, request: web.Request) -> web.Response:
        return _json({"policy": self._policy.configured_name, "policies": self._policy.names()})

    async def _put_policy(self, request: web.Request) -> web.Response:
        try:
            change = msgspec.json.decode(await request.read(), type=PolicyChange)
            self._policy.switch(change.policy)
        except (msgspec.MsgspecError, RecursionError, PolicyError) as error:
            return web.Response(
                status=400, body=error_body(400, str(error), param="policy"), content_type="application/json"
            )
        return await self._get_policies(request)

    async def _query(self, request: web.Request) -> web.Response:
        return await _answered(request, self._indexer.query)

    async def _query_by_hash(self, request: web.Request) -> web.Response:
        return await _answered(request, self._indexer.query_by_hash)


async def _answered(request: web.Request, answer: Callable[[bytes], dict[str, object]]) -> web.Response:
    try:
        return _json(answer(await request.read()))
    except IndexerQueryError as error:
        return web.Response(status=400, body=error_body(400, str(error)), content_type="application/json")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
