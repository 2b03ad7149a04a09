"""Times between tokens."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from pointsman.app.simulate.intervals import IntervalCounter


def test_quantiles_are_right_to_a_percent() -> None:
    rng = random.Random(1)
    values = [rng.lognormvariate(3, 1) for _ in range(5000)]
    counter = IntervalCounter()
    for value in values:
        counter.add(value, 2.0)
    histogram = counter.histogram()
    assert histogram.count == 10_000
    assert histogram.mean_ms == pytest.approx(np.mean(values))
    for share in (0.01, 0.5, 0.9, 0.99):
        expected = np.quantile(values, share, method="inverted_cdf")
        assert histogram.quantile_ms(share) == pytest.approx(expected, rel=0.011)


def test_weights_count() -> None:
    counter = IntervalCounter()
    counter.add(10.0, 99.0)
    counter.add(1000.0, 1.0)
    histogram = counter.histogram()
    assert histogram.quantile_ms(0.98) == pytest.approx(10, rel=0.01)
    assert histogram.quantile_ms(0.995) == pytest.approx(1000, rel=0.01)


def test_many_at_once_are_the_same() -> None:
    one, many = IntervalCounter(), IntervalCounter()
    values = [0.0, 1e-9, 5.0, 5.0, 17.0, 1e12]
    for value in values:
        one.add(value, 3.0)
    many.add_each(np.array(values), 3.0)
    assert many.histogram().weights.tolist() == one.histogram().weights.tolist()
    assert many.histogram().mean_ms == pytest.approx(one.histogram().mean_ms)


def test_the_least_is_the_first_that_is_there() -> None:
    counter = IntervalCounter()
    counter.add(10.0, 5.0)
    assert counter.histogram().quantile_ms(0.0) == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e12])
def test_extremes_have_a_bin(value: float) -> None:
    counter = IntervalCounter()
    counter.add(value, 1.0)
    assert counter.histogram().count == 1
    assert counter.histogram().mean_ms == value


def test_nothing_has_no_quantiles() -> None:
    histogram = IntervalCounter().histogram()
    assert math.isnan(histogram.quantile_ms(0.5))
    assert math.isnan(histogram.mean_ms)
