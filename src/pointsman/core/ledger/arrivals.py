"""Arrivals: how many requests a second come for a model, lately."""

from __future__ import annotations

import math

MEMORY_MS = 30_000.0
"""Requests count less by 1/e for each such time: long beside gaps between requests, short beside a day's course."""


class Arrivals:
    """One model's."""

    def __init__(self) -> None:
        self._count = 0.0
        self._last_ms = 0.0

    def came(self, at_ms: float, count: int = 1) -> None:
        """A request came, or several at once."""
        elapsed_ms = max(0.0, at_ms - self._last_ms)
        self._count = self._count * math.exp(-elapsed_ms / MEMORY_MS) + count
        self._last_ms = max(at_ms, self._last_ms)

    @property
    def per_s(self) -> float:
        """Requests a second, as of the last one; too few in the first half minute."""
        return self._count / MEMORY_MS * 1000
