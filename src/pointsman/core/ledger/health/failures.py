"""Failures: how the last requests of a worker went, and when that is enough to leave it out."""

from __future__ import annotations

from collections import deque

from pointsman.core.ledger.health.settings import HealthSettings

WINDOW_MS = 60_000.0
"""What is older counts no more."""
_MOST_KEPT = 64
_ENOUGH = 10
"""Endings from which on their share counts."""


class Failures:
    """Endings of one worker's requests that say something of the worker."""

    __slots__ = ("_endings", "_last_ms", "streak")

    def __init__(self) -> None:
        self._endings: deque[tuple[float, bool]] = deque(maxlen=_MOST_KEPT)
        self._last_ms = 0.0
        self.streak = 0
        """Failures since a request got its first token or ended well."""

    def answered(self, at_ms: float) -> None:
        """A request ended well."""
        self.streak = 0
        self._endings.append((at_ms, True))

    def failed(self, at_ms: float) -> None:
        """A request failed, and the worker is to blame."""
        if at_ms - self._last_ms > WINDOW_MS:
            self.streak = 0
        self._last_ms = at_ms
        self.streak += 1
        self._endings.append((at_ms, False))

    def too_many(self, at_ms: float, settings: HealthSettings) -> str | None:
        """What is too much, in words; None: it is not."""
        if self.streak >= settings.failures:
            return f"{self.streak} failures in a row"
        recent = [ok for ended_ms, ok in self._endings if at_ms - ended_ms <= WINDOW_MS]
        failed = recent.count(False)
        if len(recent) >= _ENOUGH and failed >= settings.failure_share * len(recent):
            return f"{failed} of the last {len(recent)} requests failed"
        return None

    def forget(self) -> None:
        """Begin anew."""
        self._endings.clear()
        self.streak = 0
