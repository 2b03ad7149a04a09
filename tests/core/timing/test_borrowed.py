"""What classes of workers in one role know of times that they never showed."""

from __future__ import annotations

import random

import pytest

from pointsman.core.timing.interval import Interval
from pointsman.core.timing.online import LearnedTimes
from pointsman.core.timing.prediction import Load
from pointsman.core.timing.step import StepCoefficients

USUAL = StepCoefficients(6.42, 0.01, 0.0499, 0.0196)
CPU = StepCoefficients(2.0, 0.2, 0.5, 0.4, 2e-6)
"""A prompt's token costs twenty times as much beside a step as usual."""


def prompt(rng: random.Random, step: StepCoefficients = CPU) -> Interval:
    tokens = rng.randint(200, 4000)
    elapsed_ms = 3.0 + step.step_ms(0, 0, tokens, tokens**2)
    return Interval(elapsed_ms * rng.uniform(0.95, 1.05), 1, prefill_tokens=tokens, prefill_squares=tokens**2, starts=1)


def decoding(rng: random.Random, step: StepCoefficients = CPU) -> Interval:
    sequences, context = rng.randint(1, 16), rng.randint(500, 4000)
    work = Interval(1.0, 32, 32 * sequences, 32 * sequences * context)
    elapsed_ms = work.predicted_ms(step) * rng.uniform(0.95, 1.05)
    return Interval(elapsed_ms, work.steps, work.sequence_steps, work.context_token_steps)


def fleet(*, related: bool = True) -> LearnedTimes:
    """Each class begins with usual proportions, at the speed of what it computes."""
    prompts, tokens = USUAL.scaled(15), USUAL.scaled(0.5)
    times = LearnedTimes({"x prefill": prompts, "y prefill": prompts, "x decode": tokens, "x": tokens})
    if related:
        for name in ("x prefill", "x decode", "x"):
            times.relate(name, "x")
    return times


def prompt_ms(times: LearnedTimes, worker: str) -> float:
    predicted = times.predict_ttft_ms(worker, Load(), 3000)
    assert predicted is not None
    return predicted


@pytest.mark.parametrize("role", ["x", "x decode"])
def test_who_only_decodes_takes_as_long_for_prompts_as_who_computes_them(role: str) -> None:
    times, rng = fleet(), random.Random(1)
    for _ in range(30):
        times.observe("p", "x prefill", prompt(rng))
        times.observe("d", role, decoding(rng))
    truth = CPU.step_ms(0, 0, 3000, 3000**2)
    assert prompt_ms(times, "p") == pytest.approx(truth, rel=0.1)
    assert prompt_ms(times, "d") == pytest.approx(truth, rel=0.1)
    alone, rng = fleet(related=False), random.Random(1)
    for _ in range(30):
        alone.observe("d", role, decoding(rng))
    assert prompt_ms(alone, "d") < truth / 5, "what it would say by itself is worth nothing"
    mine, theirs = times.coefficients("d"), alone.coefficients("d")
    assert mine is not None
    assert theirs is not None
    work = decoding(rng)
    assert work.predicted_ms(mine) == pytest.approx(work.predicted_ms(theirs), rel=0.05), "of decoding it knows best"


def test_who_only_computes_prompts_decodes_as_fast_as_who_decodes() -> None:
    times, rng = fleet(), random.Random(2)
    for _ in range(30):
        times.observe("p", "x prefill", prompt(rng))
        times.observe("d", "x decode", decoding(rng))
    mine = times.coefficients("p")
    assert mine is not None
    assert decoding(random.Random(3)).predicted_ms(mine) == pytest.approx(
        decoding(random.Random(3)).predicted_ms(CPU), rel=0.15
    )


def test_prompts_that_a_class_computes_itself_count_for_more_than_those_of_another_role() -> None:
    times, rng = fleet(), random.Random(4)
    slow = StepCoefficients(CPU.a_ms, CPU.b_ms_per_sequence, CPU.c_ms_per_1000_context_tokens, 1.2, 6e-6)
    for _ in range(30):
        times.observe("p", "x prefill", prompt(rng))
        times.observe("d", "x decode", decoding(rng))
    for _ in range(12):
        times.observe("d", "x decode", prompt(rng, slow))
    assert prompt_ms(times, "d") == pytest.approx(slow.step_ms(0, 0, 3000, 3000**2), rel=0.15)
    assert prompt_ms(times, "p") == pytest.approx(CPU.step_ms(0, 0, 3000, 3000**2), rel=0.1), "and it is not misled"


def test_other_engines_lend_nothing() -> None:
    times, rng = fleet(), random.Random(5)
    for _ in range(30):
        times.observe("p", "y prefill", prompt(rng))
        times.observe("d", "x decode", decoding(rng))
    alone, rng = fleet(related=False), random.Random(5)
    for _ in range(30):
        alone.observe("p", "y prefill", prompt(rng))
        alone.observe("d", "x decode", decoding(rng))
    assert times.times("d") == alone.times("d")


def test_a_few_prompts_beside_much_decoding_are_not_taken_for_knowledge() -> None:
    """The last tokens of prompts of which the rest came from elsewhere."""
    times, rng = fleet(), random.Random(6)
    for _ in range(60):
        times.observe("p", "x prefill", prompt(rng))
        work = decoding(rng)
        tail = CPU.step_ms(0, 0, 1, 2000) - CPU.a_ms
        mixed = Interval(work.elapsed_ms + tail, work.steps, work.sequence_steps, work.context_token_steps, 1.0, 2000.0)
        times.observe("d", "x decode", mixed)
    assert prompt_ms(times, "d") == pytest.approx(CPU.step_ms(0, 0, 3000, 3000**2), rel=0.25)
