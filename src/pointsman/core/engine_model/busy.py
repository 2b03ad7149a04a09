"""BusyShare: how busy an engine was lately, as the utilisation of a GPU is told."""

from __future__ import annotations

import math

LATELY_MS = 1_000.0
"""What is longer ago counts for a third or less."""


class BusyShare:
    """Fading mean of computing (1) and idling (0). Times must not go back."""

    __slots__ = ("_lately_ms", "_share", "_until_ms")

    def __init__(self, now_ms: float = 0.0, lately_ms: float = LATELY_MS) -> None:
        self._lately_ms = lately_ms
        self._share = 0.0
        self._until_ms = now_ms

    def ran(self, begin_ms: float, end_ms: float) -> None:
        """It computed between these times."""
        self._fade(begin_ms, 0.0)
        self._fade(end_ms, 1.0)

    def share(self, now_ms: float, running_since_ms: float | None = None) -> float:
        """0 to 1, now; `running_since_ms`: when what it computes now began."""
        idle_until_ms = now_ms if running_since_ms is None else max(running_since_ms, self._until_ms)
        share = self._share * self._kept(idle_until_ms - self._until_ms)
        return 1.0 + (share - 1.0) * self._kept(now_ms - idle_until_ms)

    def _fade(self, at_ms: float, to: float) -> None:
        if at_ms > self._until_ms:
            self._share = to + (self._share - to) * self._kept(at_ms - self._until_ms)
            self._until_ms = at_ms

    def _kept(self, passed_ms: float) -> float:
        return math.exp(-max(0.0, passed_ms) / self._lately_ms)
