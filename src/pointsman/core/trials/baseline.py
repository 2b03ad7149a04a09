"""Baseline: what a value would be for such a prompt at this time, whoever decides; takes noise out of comparisons."""

from __future__ import annotations

import math

_MEMORY_MS = 10_000.0
_LEAST_KEPT = 0.95
"""Where requests are rare, the last 20 or so count, however old."""
_ENOUGH = 5.0
_ENOUGH_FOR_SLOPE = 20.0


class Baseline:
    """A line through the recent values over ln(prompt tokens), of both arms alike.

    Load drifts and prompts differ much more than arms do. What is known before a request is decided (the time, its
    prompt, how others fared) can't depend on its arm, since a hash chose that; so taking it away leaves the difference
    of the arms as it is and makes it visible in fewer requests.
    """

    __slots__ = ("_at_ms", "_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._at_ms = -math.inf
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def residual(self, value: float, prompt_tokens: int, at_ms: float) -> float | None:
        """The value less what was to be expected, which it then becomes part of; None while too little is known."""
        x = math.log(prompt_tokens + 1.0)
        rest = None if self._weight < _ENOUGH else value - self._expected(x)
        self._add(x, value, at_ms)
        return rest

    def _expected(self, x: float) -> float:
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        if self._weight < _ENOUGH_FOR_SLOPE:
            return mean_y
        spread = self._xx / self._weight - mean_x**2
        slope = (self._xy / self._weight - mean_x * mean_y) / (max(spread, 0.0) + 0.01)
        return mean_y + slope * (x - mean_x)

    def _add(self, x: float, y: float, at_ms: float) -> None:
        keep = max(math.exp(min(0.0, (self._at_ms - at_ms) / _MEMORY_MS)), _LEAST_KEPT)
        self._at_ms = max(at_ms, self._at_ms)
        self._weight = self._weight * keep + 1.0
        self._x = self._x * keep + x
        self._y = self._y * keep + y
        self._xx = self._xx * keep + x * x
        self._xy = self._xy * keep + x * y
