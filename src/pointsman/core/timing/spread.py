"""How far predictions were off: quantiles of actual/predicted and the mean error, over a window."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FEWEST = 10
"""Ratios below which the prior spread is answered."""


_Z90 = 1.2816
"""Of a normal distribution: how many standard deviations its 90th percentile is above its median."""
_MOST_BELIEVED = 4.0
"""P90 over P50 beyond which it says that little is known, not that the mean is that far off."""


def mean_excess(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how much the mean exceeds the median, as a share of it, where P90 is `spread` times the median.

    Actual over predicted times are taken to be lognormal: the mean is exp(σ²/2) medians, σ = ln(spread)/1.2816.
    """
    sigma = np.log(np.clip(spread, 1.0, _MOST_BELIEVED)) / _Z90
    excess: NDArray[np.float64] = np.expm1(sigma * sigma / 2)
    return excess


@dataclass(frozen=True, slots=True)
class PredictionError:
    """What predictions made before the fact were worth, over the last `samples` of them."""

    samples: int
    mape: float | None
    """Mean of |predicted − actual|/actual, in percent; None = nothing seen yet."""
    p50_ratio: float
    """Median of actual/predicted."""
    p90_ratio: float


class Spread:
    """The last ratios of actual to predicted."""

    __slots__ = ("_cached", "_errors", "_prior", "_ratios")

    def __init__(self, prior_p90_ratio: float, window: int = 128) -> None:
        self._ratios: deque[float] = deque(maxlen=window)
        self._errors: deque[float] = deque(maxlen=window)
        self._prior = (1.0, prior_p90_ratio)
        self._cached: tuple[float, float] | None = self._prior

    def observe(self, predicted: float, actual: float) -> None:
        """One prediction and what came of it; left out where either is not above 0."""
        if not (predicted > 0 and actual > 0 and math.isfinite(predicted) and math.isfinite(actual)):
            return
        self._ratios.append(actual / predicted)
        self._errors.append(abs(predicted - actual) / actual)
        self._cached = None

    def clear(self) -> None:
        """Forget all: what is predicted from now on is another thing."""
        self._ratios.clear()
        self._errors.clear()
        self._cached = self._prior

    @property
    def ratios(self) -> tuple[float, float]:
        """P50 and P90 of actual/predicted; the prior ones while fewer than ten are known."""
        if self._cached is None:
            if len(self._ratios) < _FEWEST:
                self._cached = self._prior
            else:
                ratios = sorted(self._ratios)
                self._cached = (_quantile(ratios, 0.5), _quantile(ratios, 0.9))
        return self._cached

    @property
    def error(self) -> PredictionError:
        """The figures to show."""
        count = len(self._errors)
        p50, p90 = self.ratios
        return PredictionError(count, 100 * sum(self._errors) / count if count else None, p50, p90)


def _quantile(ascending: list[float], share: float) -> float:
    """Between the two values next to it; on so few numpy takes ten times as long."""
    place = share * (len(ascending) - 1)
    below = int(place)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (place - below) * (ascending[above] - ascending[below])
