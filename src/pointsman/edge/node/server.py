"""NodeServer: `pointsman node`, what runs beside engines on each machine. Now: probes of links."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

import pointsman
from pointsman.edge.configuration.engine_url import EngineUrl
from pointsman.edge.configuration.secret import Secret
from pointsman.edge.node.client import NodeClient, NodeError
from pointsman.edge.node.documents import NodeFacts, Probed, ProbeOrder, Ticket, TicketOrder
from pointsman.edge.telemetry import names
from pointsman.edge.transfer.host import host_id
from pointsman.edge.transfer.negotiation import NIXL, SHM, TCP
from pointsman.edge.transfer.nixl_agent import nixl_installed
from pointsman.edge.transfer.probe.client import ProbeError, measure
from pointsman.edge.transfer.probe.server import BusyError, ProbeLimits, ProbeServer, Slot
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.listening import listen_error

_MOST_BODY_BYTES = 64 << 10
_BEARER = "bearer "
_PROBE_S = 240.0
"""What a probe from here may take."""

_log = logging.getLogger("pointsman.node")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NodeServer(Collector):
    """`await start(...)`, `await close()`."""

    def __init__(
        self,
        clock_s: Callable[[], float],
        *,
        name: str = "",
        token: Secret | None = None,
        transports: tuple[str, ...] = (),
        limits: ProbeLimits | None = None,
    ) -> None:
        """`transports`: that probes may use, best first; default: all that work here."""
        self._name = name
        self._id = secrets.token_hex(8)
        """By which it knows itself when it is asked by its own URL."""
        self._token = token
        self._digest = None if token is None else _digest(token.reveal())
        self._host = host_id()
        self._transports = transports or usable_transports()
        self._slot = Slot(clock_s)
        self.probes = ProbeServer(self._slot, self._transports, host=self._host, limits=limits)
        self._runner: web.AppRunner | None = None
        self._refused = 0
        self._made = {"whole": 0, "broken": 0, "failed": 0}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.port = 0

    async def start(self, host: str, port: int, probe_port: int) -> None:
        """Listen. Raises EngineError that names a port that is taken."""
        app = web.Application(client_max_size=_MOST_BODY_BYTES, middlewares=[self._let_in])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/node", self._node),
                web.post("/v1/ticket", self._ticket),
                web.post("/v1/probe", self._probe),
            ]
        )
        self._runner = runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1, handler_cancellation=True
        )
        # Who hung up waits for no probe: the machine is free for the next one at once.
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await self.close()
            raise listen_error(host, port, "--listen", error) from error
        self.port = runner.addresses[0][1]
        try:
            await self.probes.start(host, probe_port)
        except OSError as error:
            await self.close()
            raise listen_error(host, probe_port, "--probe-port", error) from error

    async def close(self) -> None:
        """Stop listening; a probe that is under way is cut. May be called twice."""
        await self.probes.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def collect(self) -> list[MetricFamily]:
        """Its metrics."""
        made = CounterMetricFamily(names.NODE_PROBES.name, names.NODE_PROBES.help, labels=["outcome"])
        for outcome, count in self._made.items():
            made.add_metric([outcome], count)
        served = CounterMetricFamily(names.NODE_SERVED.name, names.NODE_SERVED.help)
        served.add_metric([], self.probes.served)
        refused = CounterMetricFamily(names.NODE_REFUSED.name, names.NODE_REFUSED.help, labels=["where"])
        refused.add_metric(["http"], self._refused)
        refused.add_metric(["probe"], self.probes.strangers)
        return [made, served, refused]

    @web.middleware
    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._digest is None or request.path == "/health" or self._is_right(request):
            return await handler(request)
        self._refused += 1
        if self._refused == 1:
            _log.warning("%s asked this node without its token (said once)", request.remote)
        return _refused(401, "this node wants its token: send it as `Authorization: Bearer TOKEN`")

    def _is_right(self, request: web.Request) -> bool:
        said = request.headers.get("Authorization", "")
        given = said[len(_BEARER) :] if said[: len(_BEARER)].lower() == _BEARER else ""
        return hmac.compare_digest(_digest(given.strip()), self._digest or b"")

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _node(self, request: web.Request) -> web.Response:
        facts = NodeFacts(pointsman.__version__, self._host, self._transports, self._name, self._slot.taken)
        return _json(facts)

    async def _ticket(self, request: web.Request) -> web.Response:
        try:
            raw = await request.read()
            asker = msgspec.json.decode(raw, type=TicketOrder).asker if raw else ""
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refused(400, f"what was asked can't be read: {error}")
        if asker == self._id:
            return _refused(
                400,
                "this URL leads back to the node that was to probe it: two URLs are one node, or it is localhost or a "
                "name that each machine takes for itself; give an address that all nodes reach",
            )
        try:
            return _json(Ticket(self.probes.ticket(), self.probes.port))
        except BusyError as error:
            return _refused(409, str(error))

    async def _probe(self, request: web.Request) -> web.Response:
        try:
            order = msgspec.json.decode(await request.read(), type=ProbeOrder)
            target = EngineUrl.parse(order.target)
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refused(400, f"the order can't be read: {error}")
        except ValueError:
            return _refused(400, f"target {order.target!r}: expected the URL of a node, such as http://10.0.0.1:8090")
        unknown = [name for name in order.transports if name not in self._transports]
        if unknown and len(unknown) == len(order.transports):
            reason = f"transport {unknown[0]} does not work here; there are {', '.join(self._transports)}"
            return _refused(400, reason)
        try:
            turn = self._slot.take(_PROBE_S)
        except BusyError as error:
            return _refused(409, str(error))
        try:
            return await self._probed(order, target)
        finally:
            self._slot.leave(turn)

    async def _probed(self, order: ProbeOrder, target: EngineUrl) -> web.Response:
        host = urlsplit(target).hostname or ""
        mine = [name for name in self._transports if not order.transports or name in order.transports]
        try:
            async with NodeClient(self._token) as client:
                ticket = await client.ticket(target, self._id)
            found = await measure(
                host,
                ticket.port,
                ticket.ticket,
                sizes_bytes=order.sizes_bytes,
                transports=mine,
                own_host=self._host,
                size_s=order.size_s,
            )
        except (NodeError, ProbeError) as error:
            if isinstance(error, NodeError) and error.status == 409:
                return _refused(409, str(error))  # whoever asked waits and asks again
            self._made["failed"] += 1
            _log.warning("a probe of %s failed: %s", target, error)
            return _refused(502, str(error))
        self._made["broken" if found.broke else "whole"] += 1
        if found.broke:
            _log.warning("%s", found.broke)
        return _json(Probed(found))


def usable_transports() -> tuple[str, ...]:
    """Those of which all that is needed is here, best first."""
    found = {NIXL: nixl_installed(), SHM: hasattr(os, "memfd_create"), TCP: True}
    return tuple(name for name, works in found.items() if works)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _refused(status: int, message: str) -> web.Response:
    return web.Response(status=status, body=error_body(status, message), content_type="application/json")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
