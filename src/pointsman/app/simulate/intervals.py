"""IntervalHistogram: times between tokens, in bins of 1 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_MS = 0.01
"""Everything below is in the first bin."""
_STEP = math.log(1.01)
_BINS = math.ceil(math.log(1e9) / _STEP)
"""Up to 10^7 ms; what is longer is in the last bin."""


@dataclass(frozen=True, slots=True, eq=False)
class IntervalHistogram:
    """Weights of log-spaced bins, each 1 % wide."""

    weights: NDArray[np.float64]
    total_ms: float
    """Sum of all intervals, exact."""

    @property
    def count(self) -> float:
        """Intervals in it."""
        return float(self.weights.sum())

    @property
    def mean_ms(self) -> float:
        """Exact mean; nan when it is empty."""
        return self.total_ms / self.count if self.count else math.nan

    def quantile_ms(self, share: float) -> float:
        """The interval that a share (0 to 1) of all do not exceed, right to 1 %; nan when it is empty."""
        if not self.count:
            return math.nan
        # At least the first bin that has anything.
        least = max(share * self.count, np.finfo(float).tiny)
        bin_number = int(np.searchsorted(np.cumsum(self.weights), least))
        return LEAST_MS * math.exp((min(bin_number, _BINS - 1) + 0.5) * _STEP)


class IntervalCounter:
    """Fills a histogram."""

    def __init__(self) -> None:
        self._weights = [0.0] * _BINS
        self._each = np.zeros(_BINS)
        self._total_ms = 0.0

    def add(self, interval_ms: float, weight: float) -> None:
        """So many intervals of that length."""
        number = int(math.log(interval_ms / LEAST_MS) / _STEP) if interval_ms > LEAST_MS else 0
        self._weights[min(number, _BINS - 1)] += weight
        self._total_ms += interval_ms * weight

    def add_each(self, intervals_ms: NDArray[np.float64], weight: float) -> None:
        """So many of each of them, several at once."""
        numbers = (np.log(np.maximum(intervals_ms, LEAST_MS) / LEAST_MS) / _STEP).astype(np.intp)
        np.add.at(self._each, np.minimum(numbers, _BINS - 1), weight)
        self._total_ms += float(intervals_ms.sum()) * weight

    def histogram(self) -> IntervalHistogram:
        """What was added so far."""
        return IntervalHistogram(np.array(self._weights) + self._each, self._total_ms)
