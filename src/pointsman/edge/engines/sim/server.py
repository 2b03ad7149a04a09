"""The simulated engine as an HTTP server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pointsman.edge.engines.sim.admin_routes import AdminRoutes
from pointsman.edge.engines.sim.api_routes import ApiRoutes, Route, send_json
from pointsman.edge.engines.sim.errors import ApiError, error_body
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.state import SimState
from pointsman.edge.engines.sim.whole_output import JSON_HEADERS
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.http1_server import HttpServer

__all__ = ["SimServer", "SimSettings", "serve_sim"]

logger = logging.getLogger("pointsman.engines.sim")


class SimServer:
    """One simulated engine that listens. `await start()`, then `url`; `await close()`. `clock_s` is the model's."""

    def __init__(self, settings: SimSettings, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self.state = SimState(settings, clock_s)
        self.port = settings.port
        """The actual port once started; a restart keeps it."""
        self._http: HttpServer | None = None
        self._answering: set[Responder] = set()
        self._restarting: asyncio.Task[None] | None = None
        admin = AdminRoutes(self.state, self._restart_soon)
        self._routes: dict[tuple[str, str], Route] = {**ApiRoutes(self.state).table(), **admin.table()}
        self._paths = {path for _, path in self._routes}

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen; OSError when the port is taken, `EngineError` when an event endpoint is."""
        self.state.publisher.open()
        try:
            await self._listen()
        except OSError:
            self.state.publisher.close()
            raise

    async def close(self) -> None:
        """Stop listening, cut what is being answered, close all sockets. May be called twice."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        await self._hang_up()
        self.state.runner.stop()
        self.state.publisher.close()

    def unready(self) -> None:
        """`/health` says 503 from now on."""
        self.state.unready = True

    def refuse(self) -> None:
        """Requests for tokens get 503 from now on; what runs goes on."""
        self.state.refusing = True

    @property
    def in_flight(self) -> int:
        """Requests for tokens that are being answered."""
        return self.state.metrics.served

    async def restart(self, down_s: float = 0.0) -> None:
        """Crash and come back on the same port: connections, requests, cache, counters, event sequence are gone."""
        logger.info("simulated restart of %s", self.url)
        await self._hang_up()
        self.state.restart()
        await asyncio.sleep(down_s)
        await self._listen()

    async def _listen(self) -> None:
        http = HttpServer(self._handle, on_reject=error_body)
        await http.start(self.settings.host, self.port)
        self._http = http
        self.port = http.port

    async def _hang_up(self) -> None:
        for responder in list(self._answering):
            responder.abort()
        if self._http is not None:
            http, self._http = self._http, None
            await http.close(0.0)

    def _restart_soon(self, down_s: float) -> None:
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.get_running_loop().create_task(self._restart_logged(down_s))

    async def _restart_logged(self, down_s: float) -> None:
        try:
            await self.restart(down_s)
        except OSError:
            logger.exception("simulated restart failed: can't listen on port %d again", self.port)

    async def _handle(self, request: IncomingRequest, responder: Responder) -> None:
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = request.path in self._paths
            send_json(responder, {"detail": "Method Not Allowed" if known else "Not Found"}, 405 if known else 404)
            return
        self._answering.add(responder)
        try:
            await route(request, responder)
        except ApiError as error:
            if responder.started:
                raise
            responder.send(error.status, JSON_HEADERS, error.body())
        finally:
            self._answering.discard(responder)


async def serve_sim(settings: SimSettings, on_ready: Callable[[SimServer], None] | None = None) -> None:
    """Run one simulated engine until cancelled; `on_ready` is called once it listens."""
    server = SimServer(settings)
    await server.start()
    try:
        if on_ready is not None:
            on_ready(server)
        await asyncio.get_running_loop().create_future()
    finally:
        await server.close()
