from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.timing.prediction import (
    Load,
    capacity_wait_ms,
    closed_loop_tpot_ms,
    e2e_ms,
    prefill_steps,
    tpot_ms,
    ttft_ms,
)
from pointsman.core.timing.step import StepCoefficients

STEP = StepCoefficients(10.0, 0.05, 0.03, 0.05, 1e-7)
BUDGET = 2048


def engine(step: StepCoefficients = STEP, blocks: int = 100_000) -> EngineModel:
    return EngineModel(
        EngineConfig(step, num_blocks=blocks, max_batched_tokens=BUDGET, max_model_len=100_000, max_num_seqs=512)
    )


def run(model: EngineModel, now_ms: float, until: str) -> tuple[float, float]:
    """When a request got its first token and when it ended."""
    first_ms = math.nan
    while True:
        step = model.begin_step(now_ms)
        assert step is not None
        now_ms += step.duration_ms
        result = model.finish_step(now_ms)
        if any(sequence.request.id == until for sequence in result.first):
            first_ms = now_ms
        if any(sequence.request.id == until for sequence in result.finished):
            return first_ms, now_ms


@settings(max_examples=80, deadline=None)
@given(
    decodes=st.integers(0, 60),
    context=st.integers(50, 3000),
    waiting=st.lists(st.integers(1, 6000), max_size=6),
    new=st.integers(1, 20_000),
    in_step=st.booleans(),
)
def test_first_and_last_token_come_when_the_engine_model_says(
    decodes: int, context: int, waiting: list[int], new: int, in_step: bool
) -> None:
    model = engine()
    now_ms = 0.0
    for number in range(decodes):
        model.add(LengthRequest(f"d{number}", context, 10_000))
    while any(sequence.first_token_ms is None for sequence in model.requests()):
        step = model.begin_step(now_ms)
        assert step is not None
        now_ms += step.duration_ms
        model.finish_step(now_ms)
    for number, tokens in enumerate(waiting):
        model.add(LengthRequest(f"w{number}", tokens, 10_000))
    kv_tokens = sum(sequence.length for sequence in model.requests() if sequence.request.id.startswith("d"))
    load = Load(decodes, kv_tokens, sum(waiting), len(waiting), BUDGET, in_step=in_step)
    came_ms = now_ms
    if in_step:
        step = model.begin_step(now_ms)
        if step is not None:
            # In the middle of it.
            came_ms, now_ms = now_ms + step.duration_ms / 2, now_ms + step.duration_ms
            model.add(LengthRequest("own", new, 100))
            model.finish_step(now_ms)
    if not any(sequence.request.id == "own" for sequence in model.requests()):
        model.add(LengthRequest("own", new, 100))
    first_ms, end_ms = run(model, now_ms, "own")
    assert ttft_ms(STEP, load, new) == pytest.approx(first_ms - came_ms, rel=0.05, abs=1.0)
    assert e2e_ms(STEP, load, new, 100) == pytest.approx(end_ms - came_ms, rel=0.05)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(100, 4000), st.integers(50, 300))
def test_a_closed_loop_settles_where_the_formula_says(clients: int, prompt: int, output: int) -> None:
    model, now_ms, started = engine(), 0.0, 0
    # Clients begin one after the other, as they are in the long run.
    due = {round(number * output / clients): number for number in range(clients)}
    steps, busy_ms, seen = 0, 0.0, 0.0
    for turn in range(6 * output):
        if turn in due or (turn < output and model.idle):
            model.add(LengthRequest(f"c{started}", prompt, output))
            started += 1
        step = model.begin_step(now_ms)
        if step is None:
            continue
        now_ms += step.duration_ms
        if turn >= 4 * output:
            steps, busy_ms, seen = steps + 1, busy_ms + step.duration_ms, seen + step.decodes
        for _ in model.finish_step(now_ms).finished:
            model.add(LengthRequest(f"c{started}", prompt, output))
            started += 1
    in_step = seen / steps
    wanted_ms = closed_loop_tpot_ms(STEP, in_step, prompt, output)
    assert busy_ms / steps == pytest.approx(wanted_ms, rel=0.05)


def test_each_thing_that_makes_it_longer_makes_it_longer() -> None:
    load = Load(10, 20_000, 5_000, 2, BUDGET)
    base = ttft_ms(STEP, load, 1_000)
    assert ttft_ms(STEP, Load(20, 20_000, 5_000, 2, BUDGET), 1_000) > base
    assert ttft_ms(STEP, Load(10, 40_000, 5_000, 2, BUDGET), 1_000) > base
    assert ttft_ms(STEP, Load(10, 20_000, 9_000, 2, BUDGET), 1_000) > base
    assert ttft_ms(STEP, load, 2_000) > base
    # The same computed after a long cached part is dearer, by attention alone.
    cached = ttft_ms(STEP, load, 1_000, cached_tokens=50_000)
    assert cached - base == pytest.approx(1e-7 * (51_000**2 - 50_000**2 - 1_000**2))
    assert ttft_ms(STEP, load, 1_000, overhead_ms=20, capacity_ms=5) == pytest.approx(base + 25)
    assert tpot_ms(STEP, load, 100.0) == pytest.approx(STEP.step_ms(10, 20_000, 100))


def test_a_prompt_takes_as_many_steps_as_the_budget_makes_of_it() -> None:
    assert prefill_steps(Load(budget_tokens=2048), 2048) == 1
    assert prefill_steps(Load(budget_tokens=2048), 2049) == 2
    between = Load(sequences=48, waiting_prefill_tokens=2000, budget_tokens=2048, in_step=False)
    assert prefill_steps(between, 1) == 2
    # The step that runs computes those that wait.
    assert prefill_steps(replace(between, in_step=True), 1) == 1
    # Nothing new to compute: the last token is computed all the same.
    assert prefill_steps(Load(), 0) == 1
    assert ttft_ms(STEP, Load(), 0) == STEP.a_ms


def test_prompts_before_it_decode_beside_it_once_they_are_computed() -> None:
    step = StepCoefficients(10.0, 5.0, 1.0, 0.01)
    model = engine(step)
    for number in range(40):
        model.add(LengthRequest(f"w{number}", 500, 10_000))
    model.add(LengthRequest("own", 500, 2))
    first_ms, _ = run(model, 0.0, "own")
    load = Load(0, 0, 40 * 500, 40, BUDGET, in_step=False)
    assert ttft_ms(step, load, 500) == pytest.approx(first_ms, rel=0.05)


def test_waiting_for_room_takes_as_long_as_others_need_to_leave() -> None:
    load = Load(sequences=50, context_tokens=50 * 1_000)
    # Each ends once in 200 steps: 250 tokens a step get free.
    assert capacity_wait_ms(STEP, load, 5_000, 200) == pytest.approx(20 * tpot_ms(STEP, load))
    assert capacity_wait_ms(STEP, load, 0, 200) == 0
    assert capacity_wait_ms(STEP, Load(), 1, 200) == math.inf
