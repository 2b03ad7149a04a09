"""Streams of real vLLM, one process killed in their middle: what clients hear is what an undisturbed run says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.model.migration import Mechanism
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from support.fetch import fetch
from support.patient_timeouts import PATIENT_TIMEOUTS
from support.told_streams import Heard, hear
from support.waiting import eventually

pytestmark = pytest.mark.engines

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LIMIT_S = 120.0
SCENES = 4
"""A fast engine may have ended most streams before it is killed: then all is repeated."""
MESSAGES = [{"role": "user", "content": "How long is a piece of string?"}]
LONG: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "temperature": 0,
    "max_tokens": 600,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": MESSAGES}),
    "completion": (COMPLETIONS, {"prompt": "How long"}),
    "logprobs": (COMPLETIONS, {"prompt": "How long is it", "logprobs": 2}),
    "stop": (COMPLETIONS, {"prompt": "How long was it", "stop": ["never said by anybody"]}),
    "chat_logprobs": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2}),
    "penalty": (CHAT, {"messages": MESSAGES, "frequency_penalty": 0.5}),
    "token_ids": (COMPLETIONS, {"prompt": [5, 6, 7, 8], "return_token_ids": True}),
}


@pytest.fixture
async def front_end(vllms: dict[str, Any]) -> AsyncIterator[Frontend]:
    sources = tuple(WorkerSource(name=name, url=server.url, api_key=server.key) for name, server in vllms.items())
    # Where cores are shared one of them may be slow; it shall get its share of the streams all the same.
    health = HealthSettings(outliers=False, canary=False)
    frontend = Frontend(
        FrontendSettings(
            sources=sources,
            port=0,
            admin_port=0,
            seed=1,
            policy="round_robin",
            health=health,
            timeouts=PATIENT_TIMEOUTS,
        )
    )
    await frontend.start()
    try:
        await eventually(lambda: sum(w.usable for w in frontend.ledger.snapshot().workers) == 2, LIMIT_S)
        yield frontend
    finally:
        await frontend.close()


async def ask(frontend: Frontend, pool: UpstreamPool, path: str, body: dict[str, Any]) -> tuple[Heard, bytes]:
    url = Origin.parse(frontend.url)
    fields = [(b"content-type", b"application/json")]
    answer = await fetch(pool, url, "POST", path, headers=fields, body=json.dumps(LONG | body).encode(), timeout_s=240)
    assert answer.status == 200, answer.body
    return hear(answer.body), answer.header(b"x-pointsman-worker") or b""


def same(heard: Heard, undisturbed: Heard) -> bool:
    """Two requests have two ids; and a logprob's last digits are of the batch that it was computed in."""
    assert len(heard.names) == len(undisturbed.names) == 1
    ours, theirs = (replace(one, names=set(), logprobs=[]) for one in (heard, undisturbed))
    tokens, logprobs = ([one[part] for one in heard.logprobs] for part in (0, 1))
    right_tokens, right_logprobs = ([one[part] for one in undisturbed.logprobs] for part in (0, 1))
    return ours == theirs and tokens == right_tokens and logprobs == pytest.approx(right_logprobs, abs=0.01)


def at_rest(frontend: Frontend) -> bool:
    snapshot = frontend.ledger.snapshot()
    return (snapshot.running, snapshot.waiting, sum(worker.kv_tokens for worker in snapshot.workers)) == (0, 0, 0)


async def kill_in_the_middle(server: Any, frontend: Frontend, tasks: list[asyncio.Task[Any]]) -> int:
    """Kills `two` when all that comes from it has begun; how many answers those were. 0: it was too fast, and lives."""
    left: list[int] = []

    def all_begun() -> bool:
        streams = list(frontend.dispatcher.streams())
        left[:] = [relay.events for worker, relay in streams if worker == "two/0"]
        done = sum(task.done() for task in tasks)
        return len(streams) + done == len(tasks) and (not left or min(left) > 0)

    await eventually(all_begun, LIMIT_S)
    if left:
        await asyncio.to_thread(server.kill)
    return len(left)


async def test_one_is_killed_while_streams_come_from_it(vllms: dict[str, Any], front_end: Frontend) -> None:
    specs = [worker.spec for worker in front_end.ledger.snapshot().workers]
    assert {spec.migration for spec in specs} == {Mechanism.TOKEN_IDS}
    pool = UpstreamPool()
    migrations = front_end.traffic.migrations
    try:
        told = await asyncio.gather(*(ask(front_end, pool, *asked) for asked in ASKED.values()))
        undisturbed = {name: heard for name, (heard, _) in zip(ASKED, told, strict=True)}
        for _ in range(SCENES):
            before = sum(migrations[mechanism, "finished"] for mechanism in ("token_ids", "replay"))
            tasks = [
                asyncio.create_task(ask(front_end, pool, *asked), name=name)
                for name, asked in ASKED.items()
                for _ in range(2)
            ]
            left = await kill_in_the_middle(vllms["two"], front_end, tasks)
            different = []
            for task in tasks:
                heard, worker = await task
                if not same(heard, undisturbed[task.get_name()]):
                    different.append((task.get_name(), worker, heard, undisturbed[task.get_name()]))
            assert not different
            # What an engine had sent to its end when it was killed needs nobody to go on with it.
            moved = sum(migrations[mechanism, "finished"] for mechanism in ("token_ids", "replay")) - before
            assert moved <= left
            await eventually(lambda: at_rest(front_end), LIMIT_S)
            assert front_end.ledger.snapshot().totals.failed == 0
            if left:
                vllms["two"].start_again()
                await asyncio.to_thread(vllms["two"].wait_ready, "/health")
            if migrations["token_ids", "finished"] >= 3 and migrations["replay", "finished"] >= 1:
                break
            await eventually(lambda: sum(w.usable for w in front_end.ledger.snapshot().workers) == 2, LIMIT_S)
        else:
            pytest.fail(f"in {SCENES} scenes hardly a stream was broken off: {dict(migrations)}")
    finally:
        await pool.close()
        if vllms["two"].process.poll() is not None:
            vllms["two"].start_again()
            await asyncio.to_thread(vllms["two"].wait_ready, "/health")
