"""RetryBudget: how many requests may be sent once more, so that a failing fleet is not sent twice the load."""

from __future__ import annotations

ALWAYS_PER_S = 10.0
"""Retries a second that are free however little traffic there is."""
MOST_SAVED = 1000.0
"""A worker that dies takes so many requests with it that may all go on elsewhere."""
SAVED_AT_START = 100.0


class RetryBudget:
    """A bucket of retries: each request adds a share of one, each retry after a worker's fault takes one.

    Args:
        share: retries that a request adds, 0 to 1; 0: nothing is ever sent again.
    """

    __slots__ = ("_at_ms", "_saved", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        """Retries that a request adds; 0: nothing is ever sent again."""
        self._saved = SAVED_AT_START if share else 0.0
        self._at_ms: float | None = None

    def came(self) -> None:
        """A request came."""
        if self._saved < MOST_SAVED:
            self._saved += self.share

    def left(self, at_ms: float) -> bool:
        """Whether one more retry may be made."""
        self._pass(at_ms)
        return self.share > 0 and self._saved >= 1.0

    def take(self, at_ms: float) -> None:
        """A retry was made."""
        self._pass(at_ms)
        self._saved = max(0.0, self._saved - 1.0)

    def _pass(self, at_ms: float) -> None:
        """What is free comes with time, up to what there is at the start."""
        before, self._at_ms = self._at_ms, at_ms
        if before is None or not self.share or self._saved >= SAVED_AT_START:
            return
        self._saved = min(SAVED_AT_START, self._saved + ALWAYS_PER_S * max(0.0, at_ms - before) / 1000)
