"""Intervals of an engine whose step times are known."""

from __future__ import annotations

import random

from pointsman.core.timing.interval import Interval
from pointsman.core.timing.step import StepCoefficients

TRUTH = StepCoefficients(12.0, 0.06, 0.04, 0.05, 2e-7)


def interval(
    rng: random.Random,
    truth: StepCoefficients = TRUTH,
    *,
    sequences: tuple[int, int] = (1, 64),
    context: tuple[int, int] = (500, 4000),
    prefill: tuple[int, int] = (0, 8000),
    noise: float = 0.03,
    slow: float = 1.0,
) -> Interval:
    """16 to 64 steps; `noise`: relative standard deviation."""
    steps = rng.randint(16, 64)
    batch = rng.randint(*sequences)
    tokens = rng.randint(*prefill)
    exact = Interval(1.0, steps, steps * batch, steps * batch * rng.randint(*context), tokens, float(tokens) ** 2)
    elapsed_ms = exact.predicted_ms(truth) * slow * max(0.1, rng.gauss(1.0, noise))
    return Interval(elapsed_ms, *exact.features[:2], exact.context_token_steps, *exact.features[3:])


def relative(found: StepCoefficients, wanted: StepCoefficients) -> tuple[float, ...]:
    """a, b, c, d over what they should be."""
    return (
        found.a_ms / wanted.a_ms,
        found.b_ms_per_sequence / wanted.b_ms_per_sequence,
        found.c_ms_per_1000_context_tokens / wanted.c_ms_per_1000_context_tokens,
        found.d_ms_per_prefill_token / wanted.d_ms_per_prefill_token,
    )
