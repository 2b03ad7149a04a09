"""Share of prompt tokens found cached, on a recorded trace and on one made here: what the prefix policy is for."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.core.policies.policy import NO_TIMING
from pointsman.core.policies.registry import PolicyRegistry

BLOCK_TOKENS = 512
KV_CAPACITY_TOKENS = 3_000_000
SERVICE_MS = 5_000.0
WORKERS = 8


@dataclass(frozen=True)
class Arrival:
    at_ms: float
    tokens: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    hit_share: float
    busiest: float
    """Requests of the busiest worker over the mean."""


def run(policy_name: str, arrivals: Iterable[Arrival]) -> Outcome:
    """Decide for one request after the other; each is answered after a fixed time."""
    ledger = Ledger(text_block_bytes=BLOCK_TOKENS * 4)
    for i in range(WORKERS):
        spec = WorkerSpec(worker_id(f"e{i}"), "http://e", "vllm", ("m",), kv_capacity_tokens=KV_CAPACITY_TOKENS)
        ledger.apply(ev.WorkerJoined(spec, 0))
        ledger.apply(ev.HealthRead(spec.id, 0, True, True, "ok"))
    policy, rng = PolicyRegistry().get(policy_name), random.Random(1)
    running: list[tuple[float, str]] = []
    hit = total = 0
    for number, arrival in enumerate(arrivals):
        while running and running[0][0] <= arrival.at_ms:
            ledger.apply(ev.Finished(running.pop(0)[1], arrival.at_ms))
        blocks = BlockKeys(arrival.keys, BLOCK_TOKENS, BlockUnit.TOKENS, arrival.tokens)
        request = Request(f"r{number}", "m", arrival.at_ms, arrival.tokens, blocks)
        ledger.apply(ev.Admitted(request, arrival.at_ms))
        view = ledger.view(request)
        decision = policy.decide(request, view, NO_TIMING, arrival.at_ms, rng)
        cached = int(view.column(Column.CACHED_TOKENS)[decision.chosen_row])
        ledger.apply(ev.Dispatched(request.id, decision.worker, arrival.at_ms, cached))
        running.append((arrival.at_ms + SERVICE_MS, request.id))
        hit, total = hit + cached, total + arrival.tokens
    dispatched = [worker.totals.dispatched for worker in ledger.snapshot().workers]
    return Outcome(hit / total, max(dispatched) * WORKERS / sum(dispatched))


def conversations(seed: int, count: int, turns: int) -> Iterator[Arrival]:
    """People who talk at the same time; each turn repeats what was said and adds to it."""
    rng = random.Random(seed)
    lengths = [rng.randrange(2, 12) for _ in range(count)]
    now = 0.0
    for turn in range(turns):
        for person in rng.sample(range(count), count):
            now += rng.expovariate(1 / 200)
            blocks = lengths[person] + 2 * turn
            yield Arrival(now, blocks * BLOCK_TOKENS, tuple(hash((person, i)) & (2**64 - 1) for i in range(blocks)))


def test_conversations_made_here() -> None:
    by_turn, by_prefix = (run(name, conversations(3, 60, 10)) for name in ("round_robin", "prefix"))
    assert by_prefix.hit_share > 0.8
    assert by_turn.hit_share < 0.6
    assert by_prefix.busiest < 1.5


@pytest.fixture
def mooncake() -> list[Arrival]:
    folder = os.environ.get("POINTSMAN_DATA")
    if not folder:
        pytest.skip("POINTSMAN_DATA is not set: the recorded trace mooncake/conversation_trace.jsonl is not here")
    lines = (Path(folder) / "mooncake" / "conversation_trace.jsonl").read_text().splitlines()[:6000]
    rows = [json.loads(line) for line in lines]
    return [Arrival(row["timestamp"], row["input_length"], tuple(row["hash_ids"])) for row in rows]


def test_the_mooncake_conversation_trace(mooncake: list[Arrival]) -> None:
    """An infinite cache that all workers shared would find .353 of these tokens."""
    by_turn, by_prefix = (run(name, mooncake) for name in ("round_robin", "prefix"))
    assert by_turn.hit_share < 0.13
    assert 0.28 < by_prefix.hit_share <= 0.353
