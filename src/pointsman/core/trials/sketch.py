"""Sketch: quantiles of positive values, each within 2.5 %, in bounded memory; sketches can be added."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_GROWTH = 1.05
_LOG_GROWTH = math.log(_GROWTH)
_LEAST, _MOST = 1e-3, 1e9
"""Values beyond are counted as these; with them a sketch has at most 567 counts."""


@dataclass(slots=True)
class Sketch:
    """Counts of values in cells whose bounds grow by a constant factor."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def add(self, value: float) -> None:
        """Count one value."""
        cell = math.floor(math.log(min(max(value, _LEAST), _MOST)) / _LOG_GROWTH)
        self.counts[cell] = self.counts.get(cell, 0) + 1
        self.total += 1

    def merge(self, other: Sketch) -> None:
        """Count all that another one counted."""
        for cell, count in other.counts.items():
            self.counts[cell] = self.counts.get(cell, 0) + count
        self.total += other.total

    def quantiles(self, *parts: float) -> list[float | None]:
        """For each part of 1 the value that so many are below; None for one outside 0 to 1, and where nothing is."""
        return [self._at(math.ceil(part * self.total)) if 0.0 <= part <= 1.0 and self.total else None for part in parts]

    def _at(self, rank: int) -> float:
        seen = 0
        for cell in sorted(self.counts):
            seen += self.counts[cell]
            if seen >= rank:
                break
        return math.exp((cell + 0.5) * _LOG_GROWTH)


def quantile_bounds(sketch: Sketch, part: float, z: float) -> tuple[float | None, float | None]:
    """Limits of a quantile from the order of the values alone, whatever their distribution.

    The number of values below the true quantile is binomial: mean n·p, variance n·p·(1 − p); the values `z` of its
    standard deviations away are the limits. None where there are too few values for one.
    """
    if not sketch.total:
        return None, None
    reach = z * math.sqrt(part * (1.0 - part) / sketch.total)
    low, high = sketch.quantiles(part - reach, part + reach)
    return low, high


def quantile_ratio(
    base: Sketch, trial: Sketch, part: float, z: float
) -> tuple[float | None, float | None, float | None]:
    """A quantile of `trial` over that of `base`, and its limits at `z` standard deviations.

    The limits of both are put together on the logarithmic scale by the method of variance estimates recovery (Zou and
    Donner 2008): no distribution is assumed and nothing is drawn at random.
    """
    (one,), (two,) = base.quantiles(part), trial.quantiles(part)
    if one is None or two is None:
        return None, None, None
    one_low, one_high = quantile_bounds(base, part, z)
    two_low, two_high = quantile_bounds(trial, part, z)
    ratio = two / one
    low = high = None
    if two_low is not None and one_high is not None:
        low = ratio * math.exp(-math.hypot(math.log(two / two_low), math.log(one_high / one)))
    if two_high is not None and one_low is not None:
        high = ratio * math.exp(math.hypot(math.log(two_high / two), math.log(one / one_low)))
    return ratio, low, high
