"""Simulated engines on loopback with a front end before them: streams that break off where a test says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from support.fetch import Response, fetch
from support.waiting import eventually

_CREATED = re.compile(rb'"created":\d+')


class SimFleet:
    """Engines that generate the same from the same tokens."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.engines: list[SimServer] = []
        self.pool = UpstreamPool()
        self.frontend: Frontend

    async def open(self, engines: int = 2, *, sim: Mapping[str, Any] | None = None, **settings: Any) -> Frontend:
        for _ in range(engines):
            engine = SimServer(SimSettings(**{"model": "m", "num_blocks": 2000, **(sim or {})}))
            await engine.start()
            self._stack.push_async_callback(engine.close)
            self.engines.append(engine)
        sources = tuple(WorkerSource(name=f"e{n}", url=engine.url) for n, engine in enumerate(self.engines))
        defaults = FrontendSettings(
            sources=sources, port=0, admin_port=0, heartbeat_s=60.0, seed=1, policy="round_robin", tokenize=False
        )
        self.frontend = Frontend(replace(defaults, **settings))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        await eventually(lambda: self._usable() == len(self.engines))
        return self.frontend

    def _usable(self) -> int:
        return sum(worker.usable for worker in self.frontend.ledger.snapshot().workers)

    async def fault(self, *numbers: int, **faults: Any) -> None:
        """Faults of engines by number; none clears them."""
        for number in numbers or range(len(self.engines)):
            url = Origin.parse(self.engines[number].url)
            body = json.dumps(faults).encode()
            answer = await fetch(self.pool, url, "POST", "/sim/faults", body=body, timeout_s=30)
            assert answer.status == 200, answer.body

    async def ask(self, path: str, body: Mapping[str, Any], headers: Any = ()) -> Response:
        data = json.dumps({"model": "m", "stream": True, **body}).encode()
        fields = [(b"x-request-id", b"mine"), *headers]
        url = Origin.parse(self.frontend.url)
        return await fetch(self.pool, url, "POST", path, headers=fields, body=data, timeout_s=30)

    async def admin(self, path: str) -> bytes:
        return (await fetch(self.pool, Origin.parse(self.frontend.admin_url), "GET", path, timeout_s=30)).body

    def at_rest(self) -> None:
        """Assert that nothing is counted any more."""
        snapshot = self.frontend.ledger.snapshot()
        assert (snapshot.running, snapshot.waiting) == (0, 0)
        for worker in snapshot.workers:
            assert (worker.running, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0)


def same_time(body: bytes) -> bytes:
    """Without the time of its creation, which has to be one through all of a stream."""
    times = set(_CREATED.findall(body))
    assert len(times) <= 1, times
    return _CREATED.sub(b'"created":0', body)
