from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.distributions import (
    Distribution,
    Exponential,
    Fixed,
    Histogram,
    Lognormal,
    Uniform,
    whole,
)
from pointsman.core.workload.generators.popularity import Popularity, passes


@pytest.mark.parametrize(
    ("distribution", "mean", "cv"),
    [
        (Fixed(7), 7, 0),
        (Uniform(10, 20), 15, 100**0.5 / 12**0.5 / 15),
        (Exponential(40), 40, 1),
        (Lognormal(1000, 0.7), 1000, 0.7),
        (Histogram({10: 3, 50: 1}), 20, 300**0.5 / 20),
    ],
)
def test_mean_and_spread_are_as_asked(distribution: Distribution, mean: float, cv: float) -> None:
    rng = np.random.default_rng(3)
    drawn = np.array([distribution.draw(rng) for _ in range(20_000)])
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_bounds_and_whole_numbers() -> None:
    rng = np.random.default_rng(3)
    drawn = [whole(Lognormal(100, 3, 20, 300), rng) for _ in range(500)]
    assert (min(drawn), max(drawn)) == (20, 300)
    assert whole(Fixed(0.2), rng) == 1
    assert set(Histogram({1: 0, 5: 2, 9: 0}).draw_many(rng, 200)) == {5.0}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(-1),
        lambda: Fixed(float("nan")),
        lambda: Uniform(2, 1),
        lambda: Exponential(0),
        lambda: Lognormal(0, 1),
        lambda: Lognormal(5, -1),
        lambda: Lognormal(5, 1, 9, 8),
        lambda: Histogram({}),
        lambda: Histogram({1: 0}),
        lambda: Histogram({1: -1, 2: 3}),
        lambda: Popularity(0),
        lambda: Popularity(3, -1),
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(TraceError):
        make()  # type: ignore[operator]


def test_popularity_follows_its_law() -> None:
    rng = np.random.default_rng(3)
    popularity = Popularity(10, 1.0)
    counts = np.bincount([popularity.draw(rng) for _ in range(30_000)], minlength=10)
    wanted = 1 / np.arange(1, 11)
    assert counts / counts.sum() == pytest.approx(wanted / wanted.sum(), abs=0.01)
    for number in (3, 10, 20):
        drawn = popularity.draw_different(rng, number)
        assert len(set(drawn)) == len(drawn) == min(number, 10)
    assert len(set(Popularity(50, 4.0).draw_different(rng, 49))) == 49


@pytest.mark.filterwarnings("error")
def test_what_a_steep_popularity_can_not_draw_follows_in_order() -> None:
    assert Popularity(50, 1e4).draw_different(np.random.default_rng(3), 4) == [0, 1, 2, 3]


def test_whole_numbers_between_bounds_are_equally_likely() -> None:
    rng = np.random.default_rng(3)
    counts = np.bincount([whole(Uniform(1, 4), rng) for _ in range(8000)], minlength=5)
    assert counts[1:] == pytest.approx([2000] * 4, rel=0.1)
    assert {whole(Uniform(0.1, 0.2), rng), whole(Uniform(2.6, 2.7), rng)} == {1, 3}


def test_passes_visit_all_before_any_again() -> None:
    for shuffle_each in (False, True):
        rounds = passes(6, np.random.default_rng(3), shuffle_each=shuffle_each)
        first, second = ([next(rounds) for _ in range(6)] for _ in range(2))
        assert sorted(first) == sorted(second) == list(range(6))
        assert (first == second) is not shuffle_each
