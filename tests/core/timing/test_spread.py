from __future__ import annotations

import math

import pytest

from pointsman.core.timing.spread import PredictionError, Spread


def test_quantiles_and_error_are_those_of_the_window() -> None:
    spread = Spread(1.5, window=10)
    for actual in range(1, 21):
        spread.observe(10.0, float(actual))
    # 11..20 are left.
    assert spread.ratios == pytest.approx((1.55, 1.91))
    assert spread.error.samples == 10
    assert spread.error.mape == pytest.approx(100 * sum(abs(10 - x) / x for x in range(11, 21)) / 10)


def test_few_samples_answer_the_prior_and_so_does_none() -> None:
    spread = Spread(1.5)
    assert spread.error == PredictionError(0, None, 1.0, 1.5)
    for _ in range(9):
        spread.observe(1.0, 4.0)
    assert spread.ratios == (1.0, 1.5)
    assert spread.error.mape == 75
    spread.observe(1.0, 4.0)
    assert spread.ratios == (4.0, 4.0)
    spread.clear()
    assert spread.error == PredictionError(0, None, 1.0, 1.5)


def test_what_is_no_time_is_left_out() -> None:
    spread = Spread(1.5)
    for predicted, actual in ((0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.inf, 1.0), (1.0, math.nan)):
        spread.observe(predicted, actual)
    assert spread.error.samples == 0
