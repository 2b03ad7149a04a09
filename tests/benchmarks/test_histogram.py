from __future__ import annotations

import random

import pytest

from harness.histogram import Histogram, median, percentile, percentiles_ms, ratio


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.9, 90), (0.99, 99), (0.991, 100), (1.0, 100), (0.001, 1)]
)
def test_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected


def test_percentiles_are_in_milliseconds_whatever_the_order() -> None:
    result = percentiles_ms([0.003, 0.001, 0.002])
    assert (result.count, result.p50, result.max) == (3, 2.0, 3.0)


def test_nothing_measured_is_none_not_zero() -> None:
    assert percentiles_ms([]).p50 is None
    assert Histogram().percentiles_ms().p99 is None
    assert median([None, None]) is None
    assert ratio(1.0, 0.0) is None
    assert ratio(None, 1.0) is None


def test_median_leaves_out_what_was_not_measured() -> None:
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert ratio(3.0, 2.0) == 1.5


def test_histogram_agrees_with_the_sorted_values_to_one_bucket() -> None:
    rng = random.Random(5)
    values = [rng.expovariate(20) for _ in range(5_000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact, estimated = percentiles_ms(values), histogram.percentiles_ms()
    for name in ("p50", "p90", "p99", "max"):
        assert getattr(estimated, name) == pytest.approx(getattr(exact, name), abs=Histogram.BUCKET_S * 1e3)


def test_histogram_keeps_what_is_longer_than_its_buckets() -> None:
    histogram = Histogram()
    histogram.add(0.0, times=97)
    histogram.add(7.5, times=2)
    histogram.add(3.0)
    result = histogram.percentiles_ms()
    assert (result.count, result.p99, result.max) == (100, 7_500, 7_500)
    assert result.p50 == pytest.approx(0.02)
