"""Percentiles, medians over rounds, and a histogram for millions of gaps."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds; None where nothing was measured."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that at least `share` of all values do not exceed. `ordered` must not be empty."""
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[rank - 1]


def percentiles_ms(seconds: Sequence[float]) -> Percentiles:
    """Percentiles of durations in seconds, given back in ms."""
    if not seconds:
        return Percentiles(0)
    ordered = sorted(seconds)
    p50, p90, p99, top = (round(percentile(ordered, share) * 1e3, 4) for share in (0.5, 0.9, 0.99, 1.0))
    return Percentiles(len(ordered), p50, p90, p99, top)


def median(values: Sequence[float | None]) -> float | None:
    """Median of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(value: float | None, base: float | None) -> float | None:
    """`value / base`, None where either is unknown or the base is zero."""
    return value / base if value is not None and base else None


class Histogram:
    """Durations in buckets of 20 µs up to 2 s, in constant memory; a longer one counts as its exact value."""

    BUCKET_S = 20e-6
    BUCKETS = 100_000

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * self.BUCKETS))
        self._longer: list[float] = []
        self._total = 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration `times` times."""
        bucket = int(seconds / self.BUCKET_S)
        self._total += times
        if bucket < self.BUCKETS:
            self._counts[bucket] += times
        else:
            self._longer.extend([seconds] * times)

    def percentiles_ms(self) -> Percentiles:
        """Percentiles in ms, each the upper edge of its bucket."""
        if not self._total:
            return Percentiles(0)
        return Percentiles(self._total, *(round(self._value_s(share) * 1e3, 3) for share in (0.5, 0.9, 0.99, 1.0)))

    def _value_s(self, share: float) -> float:
        rank = max(1, -int(-share * self._total // 1))
        for bucket, count in enumerate(self._counts):
            rank -= count
            if rank <= 0:
                return (bucket + 1) * self.BUCKET_S
        return sorted(self._longer)[rank - 1]
