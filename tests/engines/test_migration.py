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
from support.told_streams import Heard, hear
from support.waiting import eventually

pytestmark = pytest.mark.engines

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "How long is a piece of string?"}]
LONG: dict[str, Any] = {
    "model": "tiny",
    "stream": True,
    "temperature": 0,
    "max_tokens": 300,
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
        FrontendSettings(sources=sources, port=0, admin_port=0, seed=1, policy="round_robin", health=health)
    )
    await frontend.start()
    try:
        await eventually(lambda: sum(w.usable for w in frontend.ledger.snapshot().workers) == 2, 30.0)
        yield frontend
    finally:
        await frontend.close()


async def ask(frontend: Frontend, pool: UpstreamPool, path: str, body: dict[str, Any]) -> tuple[Heard, bytes]:
    url = Origin.parse(frontend.url)
    fields = [(b"content-type", b"application/json")]
    answer = await fetch(pool, url, "POST", path, headers=fields, body=json.dumps(LONG | body).encode(), timeout_s=240)
    assert answer.status == 200, answer.body
    return hear(answer.body), answer.header(b"x-pointsman-worker") or b""


def without_names(heard: Heard) -> Heard:
    """Two requests have two ids; and a logprob's last digits are of the batch that it was computed in."""
    assert len(heard.names) == 1
    return replace(heard, names=set(), logprobs=[(token, round(value, 2)) for token, value in heard.logprobs])


async def test_one_is_killed_while_streams_come_from_it(vllms: dict[str, Any], front_end: Frontend) -> None:
    specs = [worker.spec for worker in front_end.ledger.snapshot().workers]
    assert {spec.migration for spec in specs} == {Mechanism.TOKEN_IDS}
    pool = UpstreamPool()
    undisturbed = {name: (await ask(front_end, pool, *asked))[0] for name, asked in ASKED.items()}
    tasks = [
        asyncio.create_task(ask(front_end, pool, *asked), name=name) for name, asked in ASKED.items() for _ in range(2)
    ]

    def all_tell() -> bool:
        # By events: an API server that its engine outruns puts many tokens into each, so few come in all.
        told = [relay.events for worker, relay in front_end.dispatcher.streams() if worker == "two/0"]
        return len(told) == len(ASKED) and min(told) >= 5

    await eventually(all_tell, 120.0)
    await asyncio.to_thread(vllms["two"].kill)
    try:
        moved, different = 0, []
        for task in tasks:
            heard, worker = await task
            moved += worker == b"two/0"
            if without_names(heard) != without_names(undisturbed[task.get_name()]):
                different.append((task.get_name(), worker, heard, undisturbed[task.get_name()]))
        assert not different
        migrations = front_end.traffic.migrations
        assert moved == len(ASKED)
        assert migrations["token_ids", "finished"] + migrations["replay", "finished"] == moved
        assert migrations["replay", "finished"] == 2
        snapshot = front_end.ledger.snapshot()
        assert (snapshot.running, snapshot.waiting, snapshot.totals.failed) == (0, 0, 0)
        assert all(worker.kv_tokens == 0 for worker in snapshot.workers)
    finally:
        await pool.close()
        vllms["two"].start_again()
        await asyncio.to_thread(vllms["two"].wait_ready, "/health")
