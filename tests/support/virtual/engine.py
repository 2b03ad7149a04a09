"""A simulated engine as one host of the memory network: it can be stopped, killed and started again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from pointsman.edge.engines.sim.api_routes import ApiRoutes
from pointsman.edge.engines.sim.faults import Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.wire.http1_server import IncomingRequest, Responder
from support.virtual.kv_runner import KvRunner, hold_route, release_route
from support.virtual.loop import VirtualLoop
from support.virtual.network import HOST

PORT = 8000
_LABELS = '{engine="0",model_name="sim"}'


def _page(running: str, waiting: str, kv_use: str) -> bytes:
    """A page of metrics as vLLM has it."""
    return (
        f"vllm:num_requests_running{_LABELS} {running}\nvllm:num_requests_waiting{_LABELS} {waiting}\n"
        f"vllm:kv_cache_usage_perc{_LABELS} {kv_use}\nprocess_start_time_seconds 1.7e+09\n"
    ).encode()


LIES = (
    _page("0", "0", "0"),
    _page("-5", "NaN", "-1"),
    _page("1e300", "1e300", "77"),
    b"<html>Welcome to nginx!</html>",
)
"""Idle, impossible, overfull, not metrics at all."""
PROFILE = str(Path(__file__).parent / "profile.yaml")


@dataclass
class VirtualEngine:
    """`name` is its name in the configuration and, with `.engines`, in DNS."""

    loop: VirtualLoop
    name: str
    address: str
    settings: SimSettings
    passes_kv: bool = False
    """It computes prompts for others, and goes on with what others computed."""

    def __post_init__(self) -> None:
        self.server: SimServer | None = None
        self._stopped_s: float | None = None
        self._lost_s = 0.0
        self.loop.network.name(f"{self.name}.engines", self.address)

    @property
    def url(self) -> str:
        return f"http://{self.name}.engines:{PORT}"

    def _clock_s(self) -> float:
        """Its own time: it stands still while the process is stopped."""
        now_s = self.loop.time() if self._stopped_s is None else self._stopped_s
        return now_s - self._lost_s

    async def start(self) -> None:
        """A new process, with an empty cache."""
        self.server = SimServer(self.settings, self._clock_s)
        await self._as_itself(self._start_all(self.server))

    async def _start_all(self, server: SimServer) -> None:
        if self.passes_kv:
            runner = KvRunner(server.state, self.address, self._clock_s)
            server.state.runner = runner
            server._routes["POST", "/kv/release"] = release_route(runner)
            server._routes["POST", "/kv/hold"] = hold_route(server.state, runner)
            await runner.listen()
        await server.start()

    async def _as_itself(self, work: object) -> None:
        token = HOST.set(self.address)
        try:
            await work  # type: ignore[misc]
        finally:
            HOST.reset(token)

    # ---- what happens to it

    def kill(self) -> None:
        """kill -9."""
        if self.server is None:
            return
        server, self.server = self.server, None
        self.loop.network.kill(self.address)
        server.state.runner.stop()
        server.state.publisher.close()
        self._stopped_s, self._lost_s = None, 0.0

    async def restart(self) -> None:
        """kill -9, and a new process at once."""
        self.kill()
        await self.start()

    def stop(self) -> None:
        """SIGSTOP."""
        self._stopped_s = self.loop.time()
        self.loop.network.stop(self.address)

    def go_on(self) -> None:
        """SIGCONT."""
        if self._stopped_s is not None:
            self._lost_s += self.loop.time() - self._stopped_s
            self._stopped_s = None
        self.loop.network.go_on(self.address)

    def set_faults(self, **faults: object) -> None:
        """As `POST /sim/faults`."""
        assert self.server is not None
        self.server.state.set_faults(msgspec.convert(faults, Faults))

    async def move(self, address: str) -> None:
        """A new process at another address, and its name with it."""
        self.kill()
        self.address = address
        self.settings = replace(self.settings, host=address)
        self.loop.network.name(f"{self.name}.engines", address)
        await self.start()

    def lie(self, since_s: float | None) -> None:
        """Metrics say what is not so, something else every ten seconds; None: the truth again."""
        assert self.server is not None
        routes = self.server._routes
        if since_s is None:
            routes["GET", "/metrics"] = ApiRoutes(self.server.state).metrics
            return

        async def lying(request: IncomingRequest, responder: Responder) -> None:
            lie = LIES[int((self.loop.time() - since_s) / 10.0) % len(LIES)]
            responder.send(200, ((b"content-type", b"text/plain; version=0.0.4"),), lie)

        routes["GET", "/metrics"] = lying

    # ---- what is in it

    @property
    def running(self) -> int:
        """Sequences in the engine."""
        if self.server is None:
            return 0
        engine = self.server.state.runner.engine
        return engine.running + engine.waiting

    @property
    def kv(self) -> KvRunner:
        """What passes KV on."""
        assert self.server is not None
        runner = self.server.state.runner
        assert isinstance(runner, KvRunner)
        return runner

    @property
    def held(self) -> int:
        """Prompts whose KV is kept for other engines."""
        return self.kv.held if self.passes_kv and self.server is not None else 0

    async def close(self) -> None:
        """End it."""
        if self.server is not None:
            server, self.server = self.server, None
            await server.close()
            await asyncio.sleep(0)
