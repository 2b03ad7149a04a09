"""Histogram: counts in fixed buckets, cheap enough for the request path (one bisect and two additions)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
DURATION_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.5)
RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
DECISION_BUCKETS_S = (10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 10e-3)


class Histogram:
    """Observations counted by upper bounds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """Number of values seen."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Sum of all values seen."""
        return self._sum

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: upper bound as text → number of values up to it, `+Inf` last."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip(self._bounds, self._counts[:-1], strict=True):
            total += count
            buckets.append((repr(bound), float(total)))
        buckets.append(("+Inf", float(total + self._counts[-1])))
        return buckets
