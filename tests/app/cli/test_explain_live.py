"""`pointsman explain --worst ttft` on simulated engines of which one was made slow, or loses its KV events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pointsman.app.cli import main
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.faults import EventFaults, Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.fetch import Origin, Response, UpstreamPool, fetch

PROFILE = """
schema: 1
name: made
step: {a_ms: 2, b_ms_per_sequence: 0.05, c_ms_per_1000_context_tokens: 0.05, d_ms_per_prefill_token: 0.05}
kv_tokens: 100000
kv_bytes_per_token: 1000
gpu: none
model: sim
engine: sim
tensor_parallel: 1
source: a test
"""
Messages = list[dict[str, str]]


class Fleet:
    """Simulated engines a, b, c with KV events, and a front end whose policy is kv."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.pool = UpstreamPool()
        self.sims: list[SimServer] = []
        self.frontend: Frontend

    async def open(self, **sim: Any) -> None:
        profile = self._folder / "made.yaml"
        profile.write_text(PROFILE)
        for _ in range(3):
            server = SimServer(
                SimSettings(profile=str(profile), kv_events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", **sim)
            )
            await server.start()
            self._stack.push_async_callback(server.close)
            self.sims.append(server)
        sources = tuple(WorkerSource(name="abc"[i], url=sim.url) for i, sim in enumerate(self.sims))
        self.frontend = Frontend(
            FrontendSettings(sources=sources, port=0, admin_port=0, policy="kv", seed=1, debug_headers=True)
        )
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        await self.until(lambda: len(self.workers()) == 3 and all(worker.exact for worker in self.workers()))

    def workers(self) -> list[Any]:
        return sorted(self.frontend.ledger.snapshot().workers, key=lambda worker: worker.id)

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0.01)

    async def chat(self, messages: Messages, url: str = "", **headers: str) -> Response:
        body = json.dumps({"model": "sim", "messages": messages, "max_tokens": 8, "stream": True}).encode()
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        origin = Origin.parse(url or self.frontend.url)
        answer = await fetch(self.pool, origin, "POST", "/v1/chat/completions", headers=named, body=body)
        assert answer.status == 200, answer.body
        return answer

    async def explain(self, *arguments: str) -> Any:
        """The verb, in a thread of its own: it has an event loop."""
        file = self._folder / "explained.json"
        code = await asyncio.to_thread(
            main.run, ["explain", *arguments, "--admin-url", self.frontend.admin_url, "--json", str(file)]
        )
        assert code == 0
        return json.loads(file.read_bytes())


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack, tmp_path)


def conversation(who: str, turns: int, words: int = 150) -> Messages:
    said = [{"role": "user", "content": " ".join(f"{who} tells part {i} of a tale" for i in range(words // 7))}]
    for turn in range(1, turns):
        said += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": f"{who} goes on, {turn}"}]
    return said


async def burst(fleet: Fleet, turns: int) -> None:
    await asyncio.gather(*(fleet.chat(conversation(f"Ada {n}", turns)) for n in range(9)))


async def test_a_worker_that_turned_slow_is_the_reason(fleet: Fleet) -> None:
    await fleet.open()
    for turn in (1, 2, 3):
        await burst(fleet, turn)
    # A step takes longer then than a busy machine stands still.
    fleet.sims[1].state.set_faults(Faults(slow_factor=40.0))
    for first in range(4, 22, 3):  # where the machine held up this process for longer, that is the reason, rightly
        for turn in range(first, first + 3):
            await burst(fleet, turn)
        (worst,) = (await fleet.explain("--worst", "ttft", "--last", "27"))["decisions"]
        if worst["slow"]["causes"][0]["kind"] != "front_end":
            break
    assert worst["decision"]["worker"] == "b/0"
    assert worst["slow"]["causes"][0]["kind"] == "slow_worker", worst["slow"]
    assert "because b/0 takes" in worst["slow"]["sentence"]


async def test_lost_events_of_evictions_are_the_reason(fleet: Fleet) -> None:
    """The engine that held the conversation evicted it, and nobody heard of that."""
    await fleet.open(num_blocks=220)
    for turn in (1, 2):
        await burst(fleet, turn)
    long = conversation("Grace", 1, words=1_400)
    await fleet.chat(long, x_pointsman_worker="a/0")
    engine = fleet.sims[0].state.runner.engine
    assert len(engine.cached_hashes()) > 100
    await fleet.until(lambda: fleet.workers()[0].kv.blocks.get("gpu", 0) == len(engine.cached_hashes()))
    fleet.sims[0].state.set_faults(Faults(events=EventFaults(stop=True)))
    for who in ("Edsger", "Barbara"):
        await fleet.chat(conversation(who, 1, words=1_400), url=fleet.sims[0].url)  # past the front end
    await fleet.chat([*long, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "go on"}],
                     x_request_id="the slow one")  # fmt: skip
    told = await fleet.explain("the slow one")
    row = told["decision"]
    assert row["worker"] == "a/0"
    assert row["cached"] > 1000 > row.get("cached_reported", 0)
    assert told["slow"]["causes"][0]["kind"] == "lost_cache", told["slow"]
    assert "tokens thought cached at a/0 were not there" in told["slow"]["sentence"]


async def test_decisions_of_a_live_front_end_can_be_made_again(fleet: Fleet) -> None:
    await fleet.open()
    for turn in (1, 2, 3):
        await burst(fleet, turn)
    same = await fleet.explain("--last", "27", "--what-if", "policy=kv")
    assert (same["what_if"]["decisions"], same["what_if"]["changed"]) == (27, 0)
    other = await fleet.explain("--last", "27", "--what-if", "policy=round_robin")
    assert other["what_if"]["changed"] > 0
    answer = await fleet.chat(conversation("Ada 1", 4))
    name = (answer.header(b"x-pointsman-request-id") or b"").decode()
    told = await fleet.explain(name)
    assert told["decision"]["id"] == name
    assert told["why"].startswith(f"{told['decision']['worker']} took it because it holds ")
    skewed = await fleet.explain("--skew")
    assert skewed["models"][0]["requests"] == 28
