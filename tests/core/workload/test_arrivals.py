from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import (
    Arrivals,
    AtOnce,
    Bursts,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    Stage,
    Staged,
    arrival_times,
)


def _rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize(
    ("arrivals", "per_s", "cv"),
    [
        (Poisson(5), 5, 1.0),
        (Gamma(5, 3), 5, 3.0),
        (Gamma(5, 0.2), 5, 0.2),
        (Constant(5), 5, 0.0),
        (Diurnal(5, 1.0), 5, 1.0),
    ],
)
def test_rate_and_burstiness(arrivals: Arrivals, per_s: float, cv: float) -> None:
    gaps_ms = np.diff(list(islice(arrivals.times_ms(_rng()), 30_000)))
    assert (gaps_ms >= 0).all()
    assert 1000 / gaps_ms.mean() == pytest.approx(per_s, rel=0.04)
    assert gaps_ms.std() / gaps_ms.mean() == pytest.approx(cv, rel=0.05, abs=1e-6)


@pytest.mark.parametrize(
    "arrivals", [Poisson(5), Gamma(5, 3), Bursts(1, 30, 5, 2), Diurnal(5, 1.8, 60), Staged((Stage(9, 9), Stage(3, 9)))]
)
def test_times_never_go_back_and_a_seed_gives_the_same(arrivals: Arrivals) -> None:
    times = arrival_times(arrivals, _rng(), 200, 1000)
    assert times == arrival_times(arrivals, _rng(), 200, 1000)
    assert all(one <= other for one, other in pairwise(times))
    assert times != arrival_times(arrivals, np.random.default_rng(4), 200, 1000)


def test_stages_have_their_rates_and_pauses() -> None:
    stages = Staged((Stage(100, 20), Stage(0, 10), Stage(300, 10)), pause_s=5)
    assert stages.starts_ms == (0, 25_000, 40_000)
    counts, _ = np.histogram(arrival_times(stages, _rng()), [0, 20_000, 40_000, 50_000, 1e9])
    assert counts == pytest.approx([2000, 0, 3000, 0], rel=0.05)


def test_bursts_are_burstier_than_poisson_at_their_mean_rate() -> None:
    times = arrival_times(Bursts(1, 21, 30, 10), _rng(), duration_s=20_000)
    assert len(times) / 20_000 == pytest.approx(6, rel=0.1)
    counts, _ = np.histogram(times, np.arange(0, 20_000_001, 10_000))
    assert counts.var() / counts.mean() > 20


def test_a_day_has_its_peak_in_the_middle() -> None:
    day = Diurnal(10, 1.9, 1000)
    counts, _ = np.histogram(arrival_times(day, _rng(), duration_s=1000), np.arange(0, 1_000_001, 100_000))
    wanted = [day.rate_per_s(at_ms) * 100 for at_ms in range(50_000, 1_000_000, 100_000)]
    assert counts == pytest.approx(wanted, rel=0.15, abs=60)
    assert counts.argmax() in (4, 5)


def test_ends() -> None:
    assert arrival_times(Constant(2), _rng(), duration_s=1.5) == [0, 500, 1000]
    assert arrival_times(AtOnce(), _rng(), 3) == [0, 0, 0]
    with pytest.raises(TraceError, match="how many requests, or for how long"):
        arrival_times(Poisson(1), _rng())
    for duration_s in (float("inf"), float("nan"), -1.0):
        with pytest.raises(TraceError, match=r"arrivals for .* s can't be"):
            arrival_times(Poisson(1), _rng(), 5, duration_s)


@pytest.mark.parametrize("arrivals", [AtOnce(), Poisson(1e300)])
def test_more_arrivals_than_fit_into_memory_are_refused(arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.core.workload.generators.arrivals.MOST_ARRIVALS", 1000)
    assert len(arrival_times(arrivals, _rng(), 1000, 10)) == 1000
    for most in (None, 1001):
        with pytest.raises(TraceError, match="more than 1,000 arrivals: say how many"):
            arrival_times(arrivals, _rng(), most, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0),
        lambda: Poisson(float("nan")),
        lambda: Gamma(1, 0),
        lambda: Constant(-1),
        lambda: Stage(1, 0),
        lambda: Stage(-1, 1),
        lambda: Staged((Stage(1, 1),), -0.5),
        lambda: Staged((Stage(1, 1),), float("nan")),
        lambda: Bursts(1, 0, 1, 1),
        lambda: Bursts(1, 1, 0, 1),
        lambda: Diurnal(1, 2.5),
        lambda: Diurnal(1, 1.5, 0),
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(TraceError):
        make()  # type: ignore[operator]
