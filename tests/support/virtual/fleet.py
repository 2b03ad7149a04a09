"""Engines, front ends and a client on one memory network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp.connector
import zmq

from pointsman.core.ledger.snapshot import PROMPTS_ONLY
from pointsman.core.model.replica import NO_SHARE
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.virtual.bus import MemoryBusLine
from support.virtual.client import Answer, VirtualClient
from support.virtual.engine import PORT, PROFILE, VirtualEngine
from support.virtual.loop import VirtualLoop
from support.virtual.network import HOST

MODEL = "sim"


class VirtualFleet:
    """What a test of faults has at hand. Make it with `fleet_of`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.engines: list[VirtualEngine] = []
        self.frontends: list[Frontend] = []
        self.client = VirtualClient()
        self.line = MemoryBusLine(loop)
        self._turn = 0
        self._asked = 0

    # ---- putting together

    async def add_engine(self, *, passes_kv: bool = False, **settings: Any) -> VirtualEngine:
        """One more engine; it runs."""
        number = len(self.engines)
        address = f"10.0.0.{number + 1}"
        defaults: dict[str, Any] = {
            "host": address,
            "port": PORT,
            "profile": PROFILE,
            "num_blocks": 4000,
            "kv_events": "tcp://*:5557",
            "replay": "tcp://*:5558",
        }
        engine = VirtualEngine(
            self.loop, f"e{number}", address, SimSettings(**{**defaults, "model": MODEL, **settings}), passes_kv
        )
        self.engines.append(engine)
        await engine.start()
        return engine

    async def add_frontend(self, *, alone: bool = False, **settings: Any) -> Frontend:
        """One more front end before all engines; it listens."""
        number = len(self.frontends)
        address = f"10.0.1.{number + 1}"
        sources = tuple(WorkerSource(name=e.name, url=e.url, kind="vllm") for e in self.engines)
        defaults = FrontendSettings(
            sources=sources,
            host=address,
            port=8080,
            admin_host=address,
            admin_port=8081,
            policy="least_loaded",
            heartbeat_s=5.0,
            seed=number,
        )
        clock = lambda: self.loop.time() * 1000.0  # noqa: E731
        token = HOST.set(address)
        try:
            frontend = Frontend(replace(defaults, **settings), clock, None if alone else self.line.transport())
            await frontend.start()
        finally:
            HOST.reset(token)
        self.frontends.append(frontend)
        return frontend

    async def until(self, holds: Callable[[], bool], seconds: float = 60.0, every_s: float = 0.01) -> None:
        """Until something holds; TimeoutError when it takes longer."""
        end_s = self.loop.time() + seconds
        while not holds():
            if self.loop.time() > end_s:
                raise TimeoutError(f"not so within {seconds:g} s")
            await asyncio.sleep(every_s)

    async def ready(self) -> None:
        """Until every front end can use every engine, and replicas know each other."""
        everybody = len(self.frontends) - 1
        await self.until(
            lambda: all(
                sum(worker.usable or worker.state == PROMPTS_ONLY for worker in frontend.ledger.snapshot().workers)
                == len(self.engines)
                and len(frontend.replication.statuses()) == everybody
                for frontend in self.frontends
            )
        )

    # ---- asking

    def url(self) -> str:
        """Front ends in turn, as a load balancer would."""
        self._turn += 1
        return self.frontends[self._turn % len(self.frontends)].url

    def chat(self, **fields: Any) -> tuple[Answer, asyncio.Task[Answer], dict[str, Any]]:
        """Begin a stream; each asks something else. Returns its answer, its task and its body."""
        self._asked += 1
        body = self.body(self._asked, **fields)
        answer, task = self.client.start(self.url(), "/v1/chat/completions", body)
        return answer, task, body

    def plain(self, **fields: Any) -> tuple[Answer, asyncio.Task[Answer], dict[str, Any]]:
        """The same without streaming."""
        return self.chat(stream=False, stream_options=None, **fields)

    def body(self, number: int, **fields: Any) -> dict[str, Any]:
        """Of a chat request that is like no other."""
        words = " ".join(f"word{number} number {n} of it" for n in range(40))
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": words}],
            "stream": True,
            "max_tokens": 100,
            "temperature": 0,
            "stream_options": {"include_usage": True},
        } | fields

    async def truth(self, bodies: list[dict[str, Any]]) -> list[Answer]:
        """What an engine that nobody disturbs answers."""
        address = "10.0.9.1"
        oracle = VirtualEngine(
            self.loop,
            "oracle",
            address,
            replace(self.engines[0].settings, host=address, profile="instant", kv_events=None, replay=None),
        )
        await oracle.start()
        answers = [await self.client.ask(oracle.url, "POST", "/v1/chat/completions", body) for body in bodies]
        await oracle.close()
        return answers

    def at_rest(self) -> list[str]:
        """What is still counted anywhere; empty: nothing."""
        left = []
        for number, frontend in enumerate(self.frontends):
            fleet = frontend.ledger.snapshot()
            if fleet.running or fleet.waiting:
                left.append(f"front end {number}: {fleet.running} running, {fleet.waiting} waiting")
            for worker in fleet.workers:
                counts = (worker.running, worker.sequences, worker.prefill_tokens, worker.kv_tokens)
                if any(counts) or worker.others != NO_SHARE:
                    left.append(f"front end {number}, {worker.id}: {counts}, of others {worker.others}")
        left += [f"{engine.name}: {engine.running} sequences" for engine in self.engines if engine.running]
        left += [f"{engine.name}: KV of {engine.held} prompts for others" for engine in self.engines if engine.held]
        return left

    async def status(self, frontend: Frontend) -> Any:
        """The document that `pointsman status` shows."""
        return json.loads((await self.client.ask(frontend.admin_url, "GET", "/v1/status")).body)

    async def close(self) -> None:
        """End everything; nothing may be left running."""
        await self.client.close()
        for frontend in self.frontends:
            await frontend.close()
        for engine in self.engines:
            await engine.close()


@asynccontextmanager
async def fleet_of(
    loop: VirtualLoop, engines: int = 3, frontends: int = 1, *, engine: Any = None, frontend: Any = None
) -> AsyncIterator[VirtualFleet]:
    """A fleet that is ready. `engine` and `frontend` are settings of all of them."""
    fleet = VirtualFleet(loop)
    kept, real_context = aiohttp.connector.monotonic, zmq.Context
    zmq.Context = loop.lines.context  # type: ignore[misc, assignment]
    aiohttp.connector.monotonic = loop.time  # its memory of names goes by the process's clock
    try:
        for _ in range(engines):
            await fleet.add_engine(**(engine or {}))
        for _ in range(frontends):
            await fleet.add_frontend(alone=frontends == 1, **(frontend or {}))
        await fleet.ready()
        yield fleet
    finally:
        await fleet.close()
        aiohttp.connector.monotonic, zmq.Context = kept, real_context  # type: ignore[misc]
