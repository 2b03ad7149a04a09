"""A queue that grows is told from one that swings."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pointsman.app.experiments.saturation import queue_growth


def one_server(load: float, seed: int, count: int = 4_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Arrivals and ends at one server of one request a second, offered `load`."""
    rng = random.Random(seed)
    now = free = 0.0
    arrivals, ends = [], []
    for _ in range(count):
        now += rng.expovariate(load) * 1_000
        free = max(free, now) + rng.expovariate(1) * 1_000
        arrivals.append(now)
        ends.append(free)
    return np.array(arrivals), np.array(ends)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_enough_servers(load: float, seed: int) -> None:
    assert not queue_growth(*one_server(load, seed)).growing


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("load", [1.2, 1.5, 3.0])
def test_too_few(load: float, seed: int) -> None:
    growth = queue_growth(*one_server(load, seed))
    assert growth.growing
    assert growth.share == pytest.approx(1 - 1 / load, abs=0.08)


def test_those_that_are_never_served_stay_in_the_queue() -> None:
    arrivals = np.arange(300.0)
    assert queue_growth(arrivals, np.full(300, np.nan)).share == pytest.approx(1, rel=0.05)


def test_a_few_requests_say_nothing() -> None:
    growth = queue_growth(np.arange(199.0), np.full(199, np.nan))
    assert not growth.growing
    assert np.isnan(growth.share)


def test_all_at_once_say_nothing() -> None:
    assert not queue_growth(np.zeros(300), np.arange(300.0)).growing
