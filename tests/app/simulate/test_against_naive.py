"""One worker in the simulator against an engine that is computed step by step, block by block."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.support.naive_engine import Answer, NaiveEngine

from pointsman.app.simulate.run import simulate
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.timing.profiles import profile
from pointsman.core.workload.trace import Trace, TraceRequest

LLAMA = profile("h100/llama-8b")


def some_requests(rng: random.Random, size: int, capacity: int) -> list[TraceRequest]:
    """Prompts of three families; some answers have blocks that others could repeat."""
    requests: list[TraceRequest] = []
    every_ms = rng.choice([1.0, 5.0, 20.0, 100.0])
    now_ms, own = 0.0, 10**6
    for _ in range(rng.randrange(1, 40)):
        now_ms += rng.expovariate(1 / every_ms)
        prompt = rng.randrange(1, max(2, int(capacity * rng.choice([0.1, 0.4, 0.9]))))
        output = rng.randrange(1, rng.choice([3, 30, 120]))
        full, blocks = prompt // size, -(-prompt // size)
        shared = rng.randrange(full + 1)
        family = rng.randrange(3) * 1000
        ids = [family + block for block in range(shared)] + [own + block for block in range(blocks - shared)]
        own += blocks
        filled = (prompt + output) // size - full
        answer = [own + block for block in range(filled)] if rng.random() < 0.3 else []
        own += filled
        requests.append(TraceRequest(now_ms, prompt, output, tuple(ids), tuple(answer)))
    return requests


@pytest.mark.parametrize("seed", range(150))
def test_the_same_times_as_step_by_step(seed: int) -> None:
    rng = random.Random(seed)
    size, blocks = rng.choice([4, 16]), rng.choice([12, 30, 100])
    places, budget = rng.choice([1, 3, 8]), rng.choice([8, 32, 4096])
    capacity = size * blocks
    requests = some_requests(rng, size, capacity)
    known = replace(LLAMA, kv_tokens=capacity, step=replace(LLAMA.step, q_ms_per_square_token=1e-6))
    setup = Setup(
        (WorkerGroup(known, 1),),
        max_num_seqs=places,
        max_batched_tokens=budget,
        kv_events=rng.random() < 0.5,
        metrics_every_ms=rng.choice([0.0, 50.0]),
    )
    outcome = simulate(Trace("any", requests, size), setup, PolicyRegistry().get("kv"))

    answers = [
        Answer(
            asked.at_ms,
            asked.prompt_tokens,
            asked.prompt_tokens,
            min(asked.prompt_tokens + asked.output_tokens, capacity),
            asked.block_ids[: asked.prompt_tokens // size] + asked.answer_block_ids,
        )
        for asked in requests
    ]
    engine = NaiveEngine(known.step, blocks, size, places, budget)
    engine.run(answers)
    assert outcome.done.all()
    assert outcome.first_token_ms.tolist() == pytest.approx([answer.first_ms for answer in answers])
    assert outcome.end_ms.tolist() == pytest.approx([answer.last_ms for answer in answers])
    assert outcome.cached_tokens.tolist() == [answer.cached for answer in answers]
    assert outcome.itl.count == len(engine.intervals_ms)
    assert outcome.itl.total_ms == pytest.approx(sum(engine.intervals_ms))
    assert outcome.workers[0].busy_ms == pytest.approx(engine.busy_ms)
    assert outcome.workers[0].preemptions == engine.preemptions
