"""Exact KV routing through the whole front end: simulated engines with real HTTP and real KV events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from pointsman.core.ledger.events import BlocksStored
from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.core.model.token_keys import KeySpec, pack_tokens
from pointsman.core.model.worker import worker_id
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.sim.faults import EventFaults, Faults
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.fetch import Origin, Response, UpstreamPool, fetch


class Fleet:
    """Simulated engines `a`, `b`, … and a front end; the engines tokenize for it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.sims: list[SimServer] = []
        self.pool = UpstreamPool()
        self.frontend: Frontend

    async def open(self, count: int = 2, frontend: dict | None = None, **sim: object) -> None:
        defaults = SimSettings(block_size=16, num_blocks=500, kv_events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*")
        for _ in range(count):
            server = SimServer(replace(defaults, **sim))
            await server.start()
            self._stack.push_async_callback(server.close)
            self.sims.append(server)
        sources = tuple(WorkerSource(name="abc"[i], url=sim.url) for i, sim in enumerate(self.sims))
        settings = FrontendSettings(sources=sources, port=0, admin_port=0, heartbeat_s=0.5, debug_headers=True, seed=1)
        self.frontend = Frontend(replace(settings, **(frontend or {})))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        await self.until(lambda: len(self.workers()) == count and all(w.usable for w in self.workers()))

    def workers(self) -> list[WorkerSnapshot]:
        """By name: one that joins anew would otherwise be the last."""
        return sorted(self.frontend.ledger.snapshot().workers, key=lambda worker: worker.id)

    async def exact(self) -> None:
        """Wait until every worker's own word is relied on."""
        await self.until(lambda: all(worker.exact for worker in self.workers()))

    async def until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.01)

    async def chat(self, messages: list[dict[str, str]], headers=(), **fields: object) -> tuple[str, Response]:
        body = {"model": "sim", "messages": messages, "max_tokens": 4} | fields
        origin = Origin.parse(self.frontend.url)
        data = json.dumps(body).encode()
        answer = await fetch(self.pool, origin, "POST", "/v1/chat/completions", headers=headers, body=data)
        assert answer.status == 200, answer.body
        return (answer.header(b"x-pointsman-worker") or b"").decode(), answer

    async def settled(self) -> None:
        """Wait until the index is what the engines truly hold."""
        await self.until(
            lambda: [self.held(i) for i in range(len(self.sims))] == [self.true(i) for i in range(len(self.sims))]
        )

    def held(self, number: int) -> int:
        return self.workers()[number].kv.blocks.get("gpu", 0)

    def true(self, number: int) -> int:
        return len(set(self.sims[number].state.runner.engine.cached_hashes()))


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(stack)


def story(who: str, words: int = 120) -> list[dict[str, str]]:
    return [{"role": "user", "content": " ".join(f"{who} tells part {i} of a tale" for i in range(words // 7))}]


def cached_tokens(answer: Response) -> int:
    return json.loads(answer.body)["usage"]["prompt_tokens_details"]["cached_tokens"]


PIN_A = [(b"x-pointsman-worker", b"a/0")]
PIN_B = [(b"x-pointsman-worker", b"b/0")]
EXPLAIN = [(b"x-pointsman-explain", b"1")]


async def test_a_prompt_goes_where_its_blocks_are_even_if_others_put_them_there(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.exact()
    origin = Origin.parse(fleet.sims[1].url)
    body = json.dumps({"model": "sim", "messages": story("Ada"), "max_tokens": 1}).encode()
    await fetch(fleet.pool, origin, "POST", "/v1/chat/completions", body=body)  # not through the front end
    await fleet.settled()
    worker, answer = await fleet.chat(story("Ada"), EXPLAIN)
    assert worker == "b/0"
    said = json.loads(answer.header(b"x-pointsman-explain") or b"")
    assert (said["policy"], said["unit"]) == ("cost", "ms")
    chosen = said["candidates"][0]
    assert chosen["score"] == pytest.approx(sum(chosen["terms"].values()), abs=0.1)
    assert chosen["cached_tokens"] == cached_tokens(answer) > 100


async def test_predictions_are_what_the_engines_report(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.exact()
    for turn in range(3):
        for who in ("Ada", "Grace", "Edsger"):
            said = story(who)
            for earlier in range(turn):
                said.append({"role": "assistant", "content": "yes"})
                said.append({"role": "user", "content": f"{who} goes on {earlier}"})
            await fleet.chat(said)
            await fleet.settled()
    totals = fleet.frontend.ledger.snapshot().totals
    assert totals.predicted_cached_tokens == totals.reported_cached_tokens > 500


async def test_a_burst_of_siblings_lands_together_before_any_event(fleet: Fleet) -> None:
    await fleet.open(frontend={"policy": "kv"}, profile="tiny", speedup=20.0)
    await fleet.exact()
    for sim in fleet.sims:
        sim.state.set_faults(Faults(events=EventFaults(stop=True)))
    siblings = [[*story("Ada", 900), {"role": "user", "content": f"question {i}"}] for i in range(3)]
    workers = [worker for worker, _ in await asyncio.gather(*(fleet.chat(s) for s in siblings))]
    assert len(set(workers)) == 1


async def test_a_restarted_engine_and_a_cleared_cache_leave_no_stale_hit(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.exact()
    await fleet.chat(story("Ada"), PIN_A)
    await fleet.chat(story("Grace"), PIN_B)
    await fleet.settled()
    assert fleet.held(0) > 0
    await fleet.sims[0].restart()
    await fleet.until(lambda: fleet.workers()[0].usable and fleet.workers()[0].exact)
    await fleet.settled()
    _, answer = await fleet.chat(story("Ada"), [*PIN_A, *EXPLAIN])
    said = json.loads(answer.header(b"x-pointsman-explain") or b"")
    assert said["candidates"][0].get("cached_tokens", 0) == cached_tokens(answer) == 0
    origin = Origin.parse(fleet.sims[1].url)
    await fetch(fleet.pool, origin, "POST", "/reset_prefix_cache")
    await fleet.until(lambda: fleet.held(1) == 0)


async def test_salts_share_nothing_and_the_same_salt_hits(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.exact()
    first, _ = await fleet.chat(story("Ada"), cache_salt="one")
    await fleet.settled()
    again, answer = await fleet.chat(story("Ada"), EXPLAIN, cache_salt="one")
    assert again == first
    assert cached_tokens(answer) > 100
    _, answer = await fleet.chat(story("Ada"), EXPLAIN, cache_salt="two")
    said = json.loads(answer.header(b"x-pointsman-explain") or b"")
    assert all(candidate.get("cached_tokens", 0) == 0 for candidate in said["candidates"])
    assert cached_tokens(answer) == 0


async def test_lost_events_without_replay_end_the_confidence_and_say_why(fleet: Fleet, caplog) -> None:
    await fleet.open(replay=None)
    await fleet.chat(story("Ada"), PIN_A)
    await fleet.until(lambda: fleet.workers()[0].kv.state in ("complete", "partial"))
    fleet.sims[0].state.set_faults(Faults(events=EventFaults(drop=1.0)))
    await fleet.chat(story("Grace"), PIN_A)
    fleet.sims[0].state.set_faults(Faults())
    await fleet.chat(story("Edsger"), PIN_A)
    await fleet.until(lambda: fleet.workers()[0].kv.state == "partial")
    assert not fleet.workers()[0].exact
    worker, _ = await fleet.chat(story("Edsger"))
    assert worker == "a/0", "the approximate view goes on"


async def test_blocks_without_a_parent_make_the_feed_verify_itself(fleet: Fleet, monkeypatch) -> None:
    await fleet.open()
    await fleet.exact()
    doubted: list[str] = []
    monkeypatch.setattr(fleet.frontend._exact.feeds, "doubted", doubted.append)
    tokens = pack_tokens(range(16))
    fleet.frontend.emit(BlocksStored(worker_id("a"), 0.0, (1,), 987654321, tokens, KeySpec(16)))
    for _ in range(2):
        fleet.frontend._exact.look_after()
    assert doubted == ["a/0"]


async def test_without_events_nothing_is_tokenized(fleet: Fleet) -> None:
    await fleet.open(kv_events=None, replay=None)
    for _ in range(2):
        await fleet.chat(story("Ada"))
    assert fleet.frontend.policy.in_force() == "cost"
    assert all(worker.kv.state == "off" for worker in fleet.workers())


async def test_metrics_tell_of_feeds_and_of_tokenizing(fleet: Fleet) -> None:
    await fleet.open()
    await fleet.exact()
    await fleet.chat(story("Ada"), PIN_A)
    await fleet.settled()
    await fleet.chat([{"role": "user", "content": [{"type": "text", "text": "parts are not asked for"}]}])
    await fleet.settled()
    text = (await fetch(fleet.pool, Origin.parse(fleet.frontend.admin_url), "GET", "/metrics")).body.decode()
    assert 'pointsman_prompts_tokenized_total{where="engine"} 1.0' in text
    assert 'pointsman_prompts_not_tokenized_total{reason="multimodal"} 1.0' in text
    assert 'pointsman_kv_feed_losses_total{worker="a/0"} 0.0' in text
    assert 'pointsman_worker_kv_confidence{worker="a/0"} 1.0' in text
    assert f'pointsman_worker_kv_blocks{{worker="a/0"}} {fleet.true(0)}.0' in text


async def test_the_switch_in_the_configuration(fleet: Fleet) -> None:
    await fleet.open(frontend={"tokenize": False})
    await fleet.chat(story("Ada"))
    assert all(worker.kv.state == "off" for worker in fleet.workers())
