"""Intervals, paired tests and Holm's correction, against scipy's own and by hand."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from pointsman.app.experiments.measures import Kind
from pointsman.app.experiments.statistics import Interval, difference, holm, interval

OURS, THEIRS = [10.0, 12.0, 9.0, 11.0, 15.0], [14.0, 15.0, 13.0, 16.0, 18.0]


def test_the_interval_of_a_positive_measure() -> None:
    found = interval(OURS, Kind.POSITIVE)
    logs = [math.log(value) for value in OURS]
    low, high = stats.t.interval(0.95, 4, sum(logs) / 5, stats.sem(logs))
    assert found is not None
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_the_interval_of_a_share_stays_one() -> None:
    found = interval([0.9, 1.0, 1.0, 1.0, 1.0], Kind.SHARE)
    assert found is not None
    assert found.value == pytest.approx(0.98)
    assert found.high == 1.0


def test_the_interval_of_a_rate_that_was_nothing_once_is_not_below_it() -> None:
    found = interval([0.0, 5.0], Kind.POSITIVE)
    assert found is not None
    assert (found.value, found.low) == (2.5, 0.0)


def test_one_seed_has_no_interval() -> None:
    assert interval([5.0], Kind.POSITIVE) == Interval(pytest.approx(5.0))


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [1.0, math.inf]])
def test_a_missing_value_is_no_interval(values: list[float]) -> None:
    assert interval(values, Kind.POSITIVE) is None


def test_ratios_are_compared_in_pairs() -> None:
    found = difference(OURS, THEIRS, Kind.POSITIVE)
    expected = stats.ttest_rel([math.log(x) for x in OURS], [math.log(x) for x in THEIRS])
    low, high = expected.confidence_interval(0.95)
    assert found is not None
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx((math.expm1(low), math.expm1(high)))


def test_shares_are_compared_by_difference() -> None:
    found = difference([0.9, 0.8, 0.95], [0.5, 0.55, 0.6], Kind.SHARE)
    assert found is not None
    assert found.value == pytest.approx(1 / 3)
    assert found.p == pytest.approx(stats.ttest_rel([0.9, 0.8, 0.95], [0.5, 0.55, 0.6]).pvalue)


def test_the_same_values_are_no_difference() -> None:
    found = difference(OURS, list(OURS), Kind.POSITIVE)
    assert found is not None
    assert (found.value, found.p) == (0.0, 1.0)


def test_the_same_ratio_on_every_seed_is_certain() -> None:
    found = difference(OURS, [2 * value for value in OURS], Kind.POSITIVE)
    assert found is not None
    assert found.value == pytest.approx(-0.5)
    assert found.p < 1e-6


def test_one_seed_says_nothing_of_chance() -> None:
    found = difference([1.0], [2.0], Kind.POSITIVE)
    assert found is not None
    assert (found.low, found.high, found.p) == (None, None, 1.0)


@pytest.mark.parametrize(("ours", "kind"), [([1.0, 0.0], Kind.POSITIVE), ([1.0, math.nan], Kind.SHARE)])
def test_what_can_not_be_compared(ours: list[float], kind: Kind) -> None:
    assert difference(ours, [1.0, 1.0], kind) is None


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(1_000):
        found = interval([rng.lognormvariate(2.0, 0.3) for _ in range(5)], Kind.POSITIVE)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= math.exp(2.0) <= found.high
    assert 0.93 <= held / 1_000 <= 0.97
