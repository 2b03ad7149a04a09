"""Statistics over seeds: intervals of confidence, paired comparison, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from pointsman.app.experiments.measures import Kind

CONFIDENCE = 0.95
_SAME = 1e-12
"""Differences below this are rounding."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and where it lies with 95 % confidence; without bounds from one seed."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against another on the same seeds: `ratio − 1` for positive measures, else the plain difference."""

    value: float
    low: float | None
    """None: one seed says nothing of how sure it is."""
    high: float | None
    p: float
    """How likely such a difference is between two that are alike; 1 with one seed."""


def interval(values: Sequence[float], kind: Kind) -> Interval | None:
    """Mean over seeds, from Student's t; of logarithms for positive measures. None if a seed has no value."""
    if not values or any(not math.isfinite(value) for value in values):
        return None
    logs = kind is Kind.POSITIVE and min(values) > 0
    middle, half = _mean_and_half(np.log(values) if logs else np.asarray(values, dtype=np.float64))
    back = math.exp if logs else float
    if half is None:
        return Interval(back(middle))
    low, high = back(middle - half), back(middle + half)
    if kind is Kind.SHARE:
        low, high = max(low, 0.0), min(high, 1.0)
    elif kind is Kind.POSITIVE:
        low = max(low, 0.0)  # a seed had 0
    return Interval(back(middle), low, high)


def difference(ours: Sequence[float], theirs: Sequence[float], kind: Kind) -> Difference | None:
    """Compare two policies by their values on the same seeds, in the same order. None where a value is missing.

    A paired t test, on log ratios for positive measures: P99s differ by factors, not by sums.
    """
    pairs = list(zip(ours, theirs, strict=True))
    if not pairs or any(not math.isfinite(value) for pair in pairs for value in pair):
        return None
    logs = kind is Kind.POSITIVE
    if logs and min(min(pair) for pair in pairs) <= 0:
        return None
    first, second = (np.asarray(values, dtype=np.float64) for values in (ours, theirs))
    apart = np.log(first) - np.log(second) if logs else first - second
    middle, half = _mean_and_half(apart)
    p = _p_value(apart)

    def back(value: float) -> float:
        return math.expm1(value) if logs else value

    if half is None:
        return Difference(back(middle), None, None, p)
    return Difference(back(middle), back(middle - half), back(middle + half), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values corrected for being several (Holm 1979), in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, least = [1.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = least
    return corrected


def _mean_and_half(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float | None]:
    """Mean, and half the width of its interval."""
    count = len(values)
    middle = float(values.mean())
    if count < 2:
        return middle, None
    t = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return middle, t * float(values.std(ddof=1)) / math.sqrt(count)


def _p_value(apart: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    count = len(apart)
    if count < 2 or float(np.abs(apart).max()) < _SAME:
        return 1.0
    error = float(apart.std(ddof=1)) / math.sqrt(count)
    if error < _SAME:
        return 0.0
    return float(2 * stdtr(count - 1, -abs(float(apart.mean())) / error))
