"""Sketches, ratios of sums, limits, bets: what comparisons are made of."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pointsman.core.trials.arms import BUCKETS
from pointsman.core.trials.baseline import Baseline
from pointsman.core.trials.buckets import Buckets, Estimate
from pointsman.core.trials.sequential import FailureBet, _student, reach
from pointsman.core.trials.sketch import Sketch, quantile_bounds, quantile_ratio

VALUES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=60)


def sketch(values: list[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


@given(VALUES, st.floats(0.0, 1.0))
def test_quantiles_are_within_a_fortieth(values: list[float], part: float) -> None:
    (found,) = sketch(values).quantiles(part)
    exact = sorted(values)[max(0, math.ceil(part * len(values)) - 1)]
    assert found == pytest.approx(exact, rel=0.0251)


@given(VALUES, VALUES)
def test_sketches_add_up(one: list[float], two: list[float]) -> None:
    both = sketch(one)
    both.merge(sketch(two))
    assert both == sketch(one + two)


def test_a_sketch_is_bounded_and_takes_what_can_not_be() -> None:
    made = sketch([0.0, -1.0, math.inf, 1e300] + [1.01**i for i in range(3000)])
    assert len(made.counts) < 570
    assert made.total == 3004
    assert Sketch().quantiles(0.5) == [None]
    assert quantile_bounds(Sketch(), 0.5, 2) == (None, None)


def test_limits_of_a_quantile_hold_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        one, two = (sketch((np.exp(rng.normal(0, 1, 200)) * scale).tolist()) for scale in (100, 130))
        ratio, low, high = quantile_ratio(one, two, 0.5, 1.96)
        assert ratio is not None
        assert low is not None
        assert high is not None
        held += low <= 1.3 <= high
    assert 180 <= held <= 200


def test_a_tail_of_few_values_has_no_upper_limit() -> None:
    few = sketch([float(i) for i in range(1, 60)])
    assert quantile_bounds(few, 0.99, 1.96)[1] is None
    assert quantile_ratio(few, few, 0.99, 1.96)[1:] == (None, None)


def test_the_error_of_a_mean_is_that_between_groups() -> None:
    """Sessions of 20 requests that are all alike: as good as so many sessions, not as so many requests."""
    rng = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(150):
        buckets = Buckets()
        for session in rng.normal(0, 1, 100):
            bucket = int(rng.integers(BUCKETS))
            for _ in range(20):
                buckets.add(bucket, session)
        estimate = buckets.estimate()
        assert estimate is not None
        means.append(estimate.value)
        errors.append(estimate.error)
    assert float(np.mean(errors)) == pytest.approx(float(np.std(means)), rel=0.2)
    assert float(np.mean(errors)) == pytest.approx(0.1, rel=0.2)


def test_one_group_is_no_estimate_and_one_that_outweighs_all_counts_as_few() -> None:
    buckets = Buckets()
    assert buckets.ratio() is None
    assert buckets.estimate() is None
    buckets.add(3, 10.0, 2.0)
    assert buckets.ratio() == 5.0
    assert buckets.estimate() is None
    for bucket in range(20):
        buckets.add(bucket, 1.0)
    buckets.add(3, 100.0, 100.0)
    estimate = buckets.estimate()
    assert estimate is None or estimate.freedom < 1


def test_differences_have_welch_freedom() -> None:
    a, b = np.random.default_rng(3).normal(0, [[1.0], [3.0]], (2, 30))
    b = b[:12]
    one, two = (Estimate(float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5), len(x) - 1) for x in (a, b))
    found = stats.ttest_ind(a, b, equal_var=False)
    difference = one.minus(two)
    assert difference.value / difference.error == pytest.approx(found.statistic)
    assert difference.freedom == pytest.approx(found.df)


@pytest.mark.parametrize("freedom", [6, 10, 63])
@pytest.mark.parametrize("z", [1.0, 2.5, 3.5])
def test_students_t_is_about_right(z: float, freedom: float) -> None:
    assert _student(z, freedom) == pytest.approx(float(stats.t.isf(stats.norm.sf(z), freedom)), rel=0.03)


def test_limits_reach_farther_than_those_of_one_look_and_shrink() -> None:
    reaches = [reach(error, 60, 0.2, 0.0125) for error in (0.2, 0.1, 0.05, 0.01)]
    assert reaches == sorted(reaches, reverse=True)
    assert all(found > 2.24 * error for found, error in zip(reaches, (0.2, 0.1, 0.05, 0.01), strict=True))
    assert reach(0.1, 5.9, 0.2, 0.05) == math.inf
    assert reach(0.0, 60, 0.2, 0.05) == math.inf


def test_the_limit_is_crossed_by_chance_in_fewer_walks_than_alpha() -> None:
    """Random walks looked at after each of 2,000 steps; a limit for one look is crossed by nearly half of them."""
    rng = np.random.default_rng(4)
    walks = rng.normal(0, 1, (600, 2000)).cumsum(axis=1)
    n = np.arange(1, 2001)
    limit = np.array([reach(float(1 / i**0.5), 1e6, 0.2, 0.05) for i in n])
    crossed = (walks / n > limit).any(axis=1).mean()
    assert 0.005 < crossed <= 0.05
    assert (walks / n > 1.645 / n**0.5).any(axis=1).mean() > 0.4


def test_a_bet_on_equal_arms_is_seldom_won_and_one_on_a_worse_trial_soon() -> None:
    rng = random.Random(5)

    def most(chance: float, share: float, failures: int) -> tuple[float, int | None]:
        bet, best, won = FailureBet(), 0.0, None
        for i in range(failures):
            bet.add(rng.random() < chance, share)
            best = max(best, bet.evidence())
            if won is None and best >= 80:
                won = i + 1
        return best, won

    assert sum(most(0.1, 0.1, 200)[0] >= 80 for _ in range(400)) <= 400 / 80 + 7
    assert all((most(0.6, 0.1, 60)[1] or 99) <= 30 for _ in range(50))
    assert FailureBet().evidence() == pytest.approx(1.0)


def test_the_baseline_takes_load_and_length_out() -> None:
    rng = random.Random(6)
    baseline, plain, rests, load = Baseline(), [], [], 0.0
    for i in range(4000):
        load = 0.999 * load + rng.gauss(0, 0.05)
        tokens = int(math.exp(rng.gauss(6, 1.2)))
        value = 4 + load + 0.7 * math.log(tokens + 1) + rng.gauss(0, 0.3)
        rest = baseline.residual(value, tokens, 100.0 * i)
        if rest is not None:
            plain.append(value)
            rests.append(rest)
    assert len(rests) >= 3990
    assert float(np.std(rests)) < 0.5 < 1.0 < float(np.std(plain))
    assert float(np.mean(rests)) == pytest.approx(0.0, abs=0.03)


def test_the_baseline_remembers_the_last_few_over_a_pause() -> None:
    baseline = Baseline()
    for i in range(30):
        baseline.residual(5.0, 100, float(i))
    assert baseline.residual(6.0, 100, 1e9) == pytest.approx(1.0)
    assert baseline.residual(6.0, 100, 0.0) is not None  # a clock that goes back breaks nothing
