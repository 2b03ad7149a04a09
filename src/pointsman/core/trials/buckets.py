"""Buckets: a ratio of two sums, and how far it can be relied on, from how much groups of units differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pointsman.core.trials.arms import BUCKETS


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error."""

    value: float
    error: float
    freedom: float
    """Degrees of freedom of the error: about how many units it comes from, less one."""

    def minus(self, other: Estimate) -> Estimate:
        """The difference of two that have nothing to do with each other; freedom after Welch and Satterthwaite."""
        one, two = self.error**2, other.error**2
        total = one + two
        parts = one**2 / self.freedom + two**2 / other.freedom
        freedom = total**2 / parts if parts > 0.0 else min(self.freedom, other.freedom)
        return Estimate(self.value - other.value, math.sqrt(total), freedom)


def _zeros() -> list[float]:
    return [0.0] * BUCKETS


@dataclass(slots=True)
class Buckets:
    """Sums of an upper and a lower quantity by bucket: Σ upper / Σ lower is the ratio; lower = 1 makes it a mean.

    A session's requests are alike. Taken for so many independent ones they would make a chance difference look
    certain; so the error comes from the differences between buckets, each of which has whole sessions.
    """

    upper: list[float] = field(default_factory=_zeros)
    lower: list[float] = field(default_factory=_zeros)

    def add(self, bucket: int, upper: float, lower: float = 1.0) -> None:
        """One observation."""
        self.upper[bucket] += upper
        self.lower[bucket] += lower

    def merge(self, other: Buckets) -> None:
        """Add all that another one holds."""
        self.upper = [a + b for a, b in zip(self.upper, other.upper, strict=True)]
        self.lower = [a + b for a, b in zip(self.lower, other.lower, strict=True)]

    def ratio(self) -> float | None:
        """None where nothing was added."""
        lower = sum(self.lower)
        return sum(self.upper) / lower if lower > 0.0 else None

    def estimate(self) -> Estimate | None:
        """The ratio and its error; None where too few buckets have anything.

        Variance of a ratio between clusters (delta method): n / (n − 1) · Σ (upper − ratio · lower)² / (Σ lower)². As n
        counts (Σ lower)² / Σ lower², the number of buckets of equal size that would be as good.
        """
        upper, lower = np.array(self.upper), np.array(self.lower)
        total = float(lower.sum())
        if total <= 0.0:
            return None
        effective = total**2 / float(lower @ lower)
        if effective < 2.0:
            return None
        value = float(upper.sum()) / total
        rest = upper - value * lower
        variance = effective / (effective - 1.0) * float(rest @ rest) / total**2
        return Estimate(value, math.sqrt(variance), effective - 1.0)
