from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.timing.made_intervals import TRUTH, interval, relative
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.regression import StepRegression
from pointsman.core.timing.step import StepCoefficients

BUSY, IDLE, PREFILL = (
    Interval(1, 32, 32 * 40, 32 * 40 * 2500),
    Interval(1, 32, 32, 32 * 500),
    Interval(1, 1, 0, 0, 4096),
)


@pytest.mark.parametrize("factor", [3.0, 1 / 3, 1.0])
def test_a_prior_wrong_by_three_is_made_good_by_fifty_intervals(factor: float) -> None:
    rng = random.Random(1)
    regression = StepRegression(TRUTH.scaled(factor))
    for _ in range(50):
        regression.learn(interval(rng))
    for other, least in ((BUSY, 0.05), (IDLE, 0.05), (PREFILL, 0.1)):
        assert regression.predicted_ms(other) == pytest.approx(other.predicted_ms(TRUTH), rel=least)
    assert regression.noise == pytest.approx(0.03, rel=0.5)


@pytest.mark.parametrize("wrong", [(3, 1 / 3, 1 / 3, 3), (1 / 3, 3, 3, 1 / 3)])
def test_so_is_one_wrong_by_three_either_way(wrong: tuple[float, float, float, float]) -> None:
    rng = random.Random(2)
    a, b, c, d = wrong
    regression = StepRegression(StepCoefficients(12 * a, 0.06 * b, 0.04 * c, 0.05 * d))
    for _ in range(150):
        regression.learn(interval(rng))
    for other in (BUSY, IDLE):
        assert regression.predicted_ms(other) == pytest.approx(other.predicted_ms(TRUTH), rel=0.08)
    assert regression.coefficients.d_ms_per_prefill_token == pytest.approx(0.05, rel=0.15)


def test_what_traffic_does_not_show_follows_the_common_factor() -> None:
    rng = random.Random(3)
    regression = StepRegression(TRUTH.scaled(3.0))
    for _ in range(50):
        regression.learn(interval(rng, prefill=(0, 0)))
    assert regression.coefficients.d_ms_per_prefill_token == pytest.approx(TRUTH.d_ms_per_prefill_token, rel=0.4)


def test_what_cannot_be_told_apart_does_not_drift() -> None:
    rng = random.Random(4)
    regression = StepRegression(TRUTH)
    for _ in range(3000):
        # Always the same batch: only the sum of a, b and c shows.
        regression.learn(interval(rng, sequences=(32, 32), context=(2000, 2000), prefill=(0, 0)))
    assert relative(regression.coefficients, TRUTH) == pytest.approx((1, 1, 1, 1), abs=0.25)
    assert regression.predicted_ms(BUSY) == pytest.approx(BUSY.predicted_ms(TRUTH), rel=0.05)


def test_an_engine_that_changes_is_followed() -> None:
    rng = random.Random(5)
    regression = StepRegression(TRUTH, memory=100.0)
    for _ in range(300):
        regression.learn(interval(rng))
    for _ in range(300):
        regression.learn(interval(rng, slow=1.2))
    assert regression.predicted_ms(BUSY) == pytest.approx(1.2 * BUSY.predicted_ms(TRUTH), rel=0.03)


def test_one_in_five_that_is_far_too_long_changes_little() -> None:
    rng = random.Random(6)
    regression = StepRegression(TRUTH.scaled(2.0))
    for number in range(300):
        regression.learn(interval(rng, slow=1.0 if number % 5 else rng.uniform(1.5, 10)))
    for other in (BUSY, IDLE):
        assert regression.predicted_ms(other) == pytest.approx(other.predicted_ms(TRUTH), rel=0.03)


def test_the_overhead_of_a_request_is_told_from_its_prefill() -> None:
    rng = random.Random(7)
    regression = StepRegression(TRUTH)
    for _ in range(100):
        tokens = rng.randint(100, 8000)
        exact = Interval(1, 1, prefill_tokens=tokens, prefill_squares=tokens**2, starts=1)
        elapsed_ms = exact.predicted_ms(TRUTH, 60.0) * rng.gauss(1.0, 0.02)
        regression.learn(Interval(elapsed_ms, 1, prefill_tokens=tokens, prefill_squares=tokens**2, starts=1))
    assert regression.overhead_ms == pytest.approx(60, rel=0.15)
    assert regression.coefficients.d_ms_per_prefill_token == pytest.approx(0.05, rel=0.05)


def test_doubt_shrinks_where_there_was_traffic() -> None:
    rng = random.Random(8)
    regression = StepRegression(TRUTH)
    before = regression.doubt(BUSY), regression.doubt(PREFILL)
    for _ in range(50):
        regression.learn(interval(rng, prefill=(0, 0)))
    assert regression.doubt(BUSY) < before[0] / 20
    assert regression.doubt(PREFILL) > before[1] / 3


def test_rescaling_holds_and_loosening_forgets() -> None:
    rng = random.Random(9)
    regression = StepRegression(TRUTH)
    for _ in range(100):
        regression.learn(interval(rng))
    before = regression.predicted_ms(BUSY)
    regression.rescale(1.3)
    assert regression.predicted_ms(BUSY) == pytest.approx(1.3 * before, rel=0.01)
    doubt = regression.doubt(BUSY)
    regression.loosen(0.1)
    assert regression.doubt(BUSY) > 2 * doubt


def test_an_engine_of_quite_other_proportions_is_learned_exactly_from_exact_intervals() -> None:
    # A CPU under a GPU's prior: prompts cost twenty times as much beside a step.
    truth, rng = StepCoefficients(5.95, 0.465, 0.125, 0.375), random.Random(0)
    regression = StepRegression(StepCoefficients(6.4, 0.0, 0.05, 0.0196))
    for _ in range(150):
        tokens, steps, batch = float(rng.randint(40, 600)), rng.randint(8, 40), rng.randint(1, 3)
        prompt = Interval(1, 1, prefill_tokens=tokens, prefill_squares=tokens**2, starts=1)
        decoding = Interval(1, steps, steps * batch, steps * batch * rng.randint(100, 600))
        for work in (prompt, decoding):
            regression.learn(replace(work, elapsed_ms=work.predicted_ms(truth)))
    assert regression.coefficients.d_ms_per_prefill_token == pytest.approx(truth.d_ms_per_prefill_token, rel=0.02)
    assert regression.predicted_ms(decoding) == pytest.approx(decoding.predicted_ms(truth), rel=0.02)
    assert regression.noise < 0.03


def test_rescaling_to_and_fro_makes_no_evidence_of_the_prior() -> None:
    rng = random.Random(4)
    regression = StepRegression(StepCoefficients(12.0, 0.06, 0.04, 0.005))
    for _ in range(8):
        regression.learn(interval(rng, noise=0.0))
    learned = regression.coefficients
    for _ in range(300):
        regression.rescale(1.01)
        regression.rescale(1 / 1.01)
    assert relative(regression.coefficients, learned) == pytest.approx((1, 1, 1, 1), rel=0.05)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.05, 20.0), st.floats(0.0, 1.0))
def test_nothing_ever_costs_less_than_nothing(seed: int, slow: float, noise: float) -> None:
    rng = random.Random(seed)
    regression = StepRegression(StepCoefficients(10.0, 0.0, 0.0, 0.02))
    for _ in range(25):
        regression.learn(interval(rng, slow=slow, noise=noise))
        found = regression.coefficients
        values = (found.a_ms, found.b_ms_per_sequence, found.c_ms_per_1000_context_tokens)
        assert min(*values, found.d_ms_per_prefill_token, found.q_ms_per_square_token) >= 0
        assert regression.overhead_ms >= 0
        assert 0 < regression.predicted_ms(BUSY) < 1e7


def test_an_engine_without_times_has_a_prior_too() -> None:
    regression = StepRegression(StepCoefficients(0, 0, 0, 0))
    assert regression.predicted_ms(BUSY) == 0
    rng = random.Random(10)
    for _ in range(200):
        regression.learn(interval(rng, StepCoefficients(0.2, 0.001, 0.0005, 0.0005)))
    assert regression.predicted_ms(BUSY) == pytest.approx(32 * 0.29, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_times_beyond_reason_leave_finite_coefficients(seed: int) -> None:
    rng = random.Random(seed)
    regression = StepRegression(StepCoefficients(23.8, 1.86, 0.5, 1.5))
    for _ in range(30):
        # A million prompt tokens in no time: nothing but one line of all that could be is known, and that too well.
        for tokens in (1.0, 1e6):
            regression.learn(Interval(10 ** rng.uniform(-6, 0), tokens // 1e6, 0, 0, tokens, tokens**2))
            found = regression.coefficients
            values = (found.a_ms, found.b_ms_per_sequence, found.c_ms_per_1000_context_tokens)
            values += (found.d_ms_per_prefill_token, found.q_ms_per_square_token, regression.overhead_ms)
            assert all(math.isfinite(value) and value >= 0 for value in values)
