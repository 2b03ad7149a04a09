from __future__ import annotations

from pointsman.edge.telemetry.histogram import Histogram


def test_counts_are_cumulative_and_bounds_inclusive() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert histogram.cumulative() == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert (histogram.count, histogram.sum) == (4, 7.65)
