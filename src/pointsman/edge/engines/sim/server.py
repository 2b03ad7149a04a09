"""The simulated engine as an HTTP server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pointsman.edge.engines.openai_server.listener import Listener, Route
from pointsman.edge.engines.sim.admin_routes import AdminRoutes
from pointsman.edge.engines.sim.api_routes import ApiRoutes
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.sim.state import SimState

__all__ = ["SimServer", "SimSettings", "serve_sim"]

logger = logging.getLogger("pointsman.engines.sim")


class SimServer:
    """One simulated engine that listens. `await start()`, then `url`; `await close()`. `clock_s` is the model's."""

    def __init__(self, settings: SimSettings, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self.settings = settings
        self.state = SimState(settings, clock_s)
        self._restarting: asyncio.Task[None] | None = None
        admin = AdminRoutes(self.state, self._restart_soon)
        self._routes: dict[tuple[str, str], Route] = {**ApiRoutes(self.state).table(), **admin.table()}
        self._listener = Listener(settings.host, settings.port, self._routes)

    @property
    def port(self) -> int:
        """The actual port once started; a restart keeps it."""
        return self._listener.port

    @property
    def url(self) -> str:
        """Base URL, without a slash at its end."""
        return self._listener.url

    async def start(self) -> None:
        """Listen; OSError when the port is taken, `EngineError` when an event endpoint is."""
        self.state.publisher.open()
        try:
            await self._listener.listen()
        except OSError:
            self.state.publisher.close()
            raise

    async def close(self) -> None:
        """Stop listening, cut what is being answered, close all sockets. May be called twice."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.wait([self._restarting])
        await self._listener.hang_up()
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
        await self._listener.hang_up()
        self.state.restart()
        await asyncio.sleep(down_s)
        await self._listener.listen()

    def _restart_soon(self, down_s: float) -> None:
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.get_running_loop().create_task(self._restart_logged(down_s))

    async def _restart_logged(self, down_s: float) -> None:
        try:
            await self.restart(down_s)
        except OSError:
            logger.exception("simulated restart failed: can't listen on port %d again", self.port)


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
