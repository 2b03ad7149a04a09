"""Random lengths and pauses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pointsman.core.model.errors import TraceError


class Distribution(Protocol):
    """Of numbers that are not negative: tokens, turns, ms."""

    def draw(self, rng: np.random.Generator) -> float:
        """One number."""
        ...


def whole(distribution: Distribution, rng: np.random.Generator) -> int:
    """One whole number of at least 1, for example of tokens."""
    if isinstance(distribution, Uniform):
        # Rounding would give the two bounds half of what the numbers between them get.
        low, high = (max(1, round(bound)) for bound in (distribution.low, distribution.high))
        return int(rng.integers(low, high, endpoint=True))
    return max(1, round(distribution.draw(rng)))


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    value: float

    def __post_init__(self) -> None:
        _check(math.isfinite(self.value) and self.value >= 0, f"a value of {self.value}")

    def draw(self, rng: np.random.Generator) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Between two bounds, all equally likely; of whole numbers, both bounds too."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(0 <= self.low <= self.high < math.inf, f"bounds {self.low} and {self.high}")

    def draw(self, rng: np.random.Generator) -> float:
        """One number."""
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True, slots=True)
class Exponential:
    """With that mean."""

    mean: float

    def __post_init__(self) -> None:
        _check(0 < self.mean < math.inf, f"a mean of {self.mean}")

    def draw(self, rng: np.random.Generator) -> float:
        """One number."""
        return float(rng.exponential(self.mean))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Mean and coefficient of variation (standard deviation / mean) are those before it is cut to `low`..`high`."""

    mean: float
    cv: float
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        _check(0 < self.mean < math.inf, f"a mean of {self.mean}")
        _check(0 <= self.cv < math.inf, f"a coefficient of variation of {self.cv}")
        _check(0 <= self.low <= self.high, f"bounds {self.low} and {self.high}")

    def draw(self, rng: np.random.Generator) -> float:
        """One number. Mean m and CV v give the normal distribution's variance ln(1 + v²) and mean ln m - variance/2."""
        variance = math.log1p(self.cv**2)
        value = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance))
        return float(min(max(value, self.low), self.high))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Values with weights, which need not sum to 1."""

    weights: Mapping[float, float]
    _values: np.ndarray = field(init=False, repr=False, compare=False)
    _cumulated: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = np.array(list(self.weights), dtype=np.float64)
        weights = np.array(list(self.weights.values()), dtype=np.float64)
        _check(bool(len(values)) and bool(np.all(np.isfinite(values) & (values >= 0))), "a histogram of such values")
        _check(bool(np.all(np.isfinite(weights) & (weights >= 0))) and weights.sum() > 0, "a histogram of such weights")
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_cumulated", np.cumsum(weights))

    def draw(self, rng: np.random.Generator) -> float:
        """One of the values."""
        return float(self.draw_many(rng, 1)[0])

    def draw_many(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """`count` of the values."""
        places = np.searchsorted(self._cumulated, rng.random(count) * self._cumulated[-1], side="right")
        return np.asarray(self._values[np.minimum(places, len(self._values) - 1)])


def _check(fine: bool, what: str) -> None:
    if not fine:
        raise TraceError(f"no distribution has {what}")
