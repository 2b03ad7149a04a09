"""Ten thousand requests with aborts, resets, errors and engine restarts; and two thousand streams at once."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import psutil
import pytest

from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.faults import Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings

REQUESTS = 10_000
CLIENTS = 48
WARM_UP = 2_000
FAULT_EVERY = 10
"""Requests from one fault to the next."""
FORGIVING = HealthSettings(outliers=False, canary=False, failures=1_000_000, failure_share=2.0)
"""Engines are left out for nothing but that they are down, so that all of them get their faults."""

pytestmark = pytest.mark.soak


class Client:
    """A client without manners: it leaves when it likes. Raw sockets, so that nothing of ours is on its side."""

    def __init__(self, port: int, seed: int, outcomes: Counter[str]) -> None:
        self.port = port
        self.rng = random.Random(seed)
        self.outcomes = outcomes

    async def ask(self) -> None:
        rng = self.rng
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": f"topic {rng.randrange(40)} " * rng.randrange(1, 60)}],
            "max_tokens": rng.randrange(1, 24),
            "stream": rng.random() < 0.7,
            "n": rng.choice([1, 1, 1, 2]),
        }
        data = json.dumps(body).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head % len(data) + data)
            self.outcomes[await self.listen(reader)] += 1
        except OSError:
            self.outcomes["cut"] += 1
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def listen(self, reader: asyncio.StreamReader) -> str:
        chance = self.rng.random()
        if chance < 0.08:
            return "left at once"
        if chance < 0.2:
            await reader.read(1)
            return "left after the first byte"
        answer = await asyncio.wait_for(reader.read(-1), 30)
        return answer[9:12].decode() if answer else "cut"


async def disturb(
    sims: list[SimServer], frontend: Frontend, rng: random.Random, outcomes: Counter[str], done: asyncio.Event
) -> None:
    """Faults of all kinds, on one engine at a time, until the clients are through. One that restarts gets to its feet
    before the next fault: this is about what faults leave behind, not about a fleet that is down. Faults come by
    requests, not by time, so that a slow machine has no more of them."""
    kinds = [
        Faults(reset_after_tokens=2, requests=20),
        Faults(error_after_tokens=3, requests=20),
        Faults(error_status=503, requests=20),
        Faults(refuse=True, requests=10),
        Faults(first_byte_delay_ms=5, requests=50),
        None,
    ]
    while not done.is_set():
        sim, kind = rng.choice(sims), rng.choice(kinds)
        if kind is None:
            await sim.restart(down_s=0.05)
            await all_usable(frontend, len(sims))
        else:
            sim.state.set_faults(kind)
        seen = outcomes.total()
        while outcomes.total() < seen + FAULT_EVERY and not done.is_set():
            await asyncio.sleep(0.005)


async def all_usable(frontend: Frontend, count: int) -> None:
    async with asyncio.timeout(120):
        while sum(worker.usable for worker in frontend.ledger.snapshot().workers) < count:
            await asyncio.sleep(0.01)


def leftovers() -> Counter[str]:
    """Tasks of this loop, by what they run."""
    return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())


@pytest.fixture
def no_log_kept() -> Iterator[None]:
    """pytest keeps every log record of a test; here that would look like a leak."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("no_log_kept")
async def test_ten_thousand_requests_leave_nothing_behind() -> None:
    rng = random.Random(7)
    outcomes: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        sims = [SimServer(SimSettings(max_num_seqs=32, num_blocks=2_000)) for _ in range(3)]
        for sim in sims:
            await sim.start()
            stack.push_async_callback(sim.close)
        sources = tuple(WorkerSource(name=f"e{i}", url=sim.url, kind="vllm") for i, sim in enumerate(sims))
        frontend = Frontend(
            FrontendSettings(
                sources=sources, port=0, admin_port=0, heartbeat_s=1.0, policy="prefix", seed=3, health=FORGIVING
            )
        )
        await frontend.start()
        stack.push_async_callback(frontend.close)
        await all_usable(frontend, len(sims))
        tasks_before = leftovers()
        port = int(frontend.url.rsplit(":", 1)[1])
        left = iter(range(REQUESTS))
        process = psutil.Process(os.getpid())
        rss_at: dict[int, int] = {}

        async def clients(number: int) -> None:
            client = Client(port, number, outcomes)
            for i in left:
                if i in (WARM_UP, REQUESTS - 1):
                    gc.collect()
                    rss_at[i] = process.memory_info().rss
                await client.ask()

        done = asyncio.Event()
        disturbing = asyncio.create_task(disturb(sims, frontend, rng, outcomes, done))
        await asyncio.gather(*(clients(number) for number in range(CLIENTS)))
        done.set()
        await disturbing
        async with asyncio.timeout(30):
            while frontend.ledger.in_flight or frontend._server.connections:
                await asyncio.sleep(0.01)

        assert sum(outcomes.values()) == REQUESTS
        assert outcomes["200"] > REQUESTS / 2, outcomes
        assert {"left at once", "left after the first byte", "503"} <= set(outcomes), outcomes
        snapshot = frontend.ledger.snapshot()
        totals = snapshot.totals
        assert (snapshot.running, snapshot.waiting) == (0, 0)
        for worker in snapshot.workers:
            assert (worker.running, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0)
        ended = totals.finished + totals.failed + totals.cancelled
        assert ended == sum(frontend.traffic.responses.values())
        # One that left at once may have gone before its request was read.
        assert REQUESTS - outcomes["left at once"] <= ended <= REQUESTS
        assert totals.cancelled > 0
        assert totals.failed > 0
        await frontend._prober.close()  # a probe under way is no leftover
        await frontend.pool.close()
        assert frontend.pool.open_connections == 0
        async with asyncio.timeout(30):
            while leftovers() - tasks_before:
                await asyncio.sleep(0.01)
        grown = rss_at[REQUESTS - 1] - rss_at[WARM_UP]
        assert grown < 24 * 2**20, f"{grown / 2**20:.1f} MiB more after {REQUESTS - WARM_UP} requests"
