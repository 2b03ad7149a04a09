"""KvTrust: whether KV that a worker gave or took was any good lately. What keeps failing is left alone for a while.

Neither worker is ill for that: they answer whole requests as ever. A port between two machines may be closed, a
connector set up wrongly; nobody can tell from outside which of both it is, so it counts at each, and what works at
either one clears it there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from pointsman.core.model.view import KV_GIVES, KV_PARTS, KV_TAKES

FAILURES = 3
"""In a row, until it is left alone."""
APART_MS = 5_000.0
"""Failures within that count as one: an engine that dies takes all transfers with it that are on their way."""
COOL_OFF_MS = 30_000.0
MOST_COOL_OFF_MS = 600_000.0
"""It doubles each time that the first try after it fails again."""


@dataclass(frozen=True, slots=True)
class KvChange:
    """Something became of a worker's part in transfers; for the log."""

    worker: str
    gives: bool
    """Else what it takes."""
    off_ms: float | None
    """Left alone for so long; None: it is tried again."""
    failures: int = 0


@dataclass(slots=True)
class _Side:
    failures: int = 0
    last_ms: float = -math.inf
    off_until_ms: float | None = None
    cool_off_ms: float = COOL_OFF_MS

    def failed(self, at_ms: float) -> float | None:
        """For how long it is left alone from now on; None: it is not, or is already."""
        if at_ms - self.last_ms < APART_MS:
            return None
        self.last_ms = at_ms
        self.failures += 1
        if self.off_until_ms is not None or self.failures < FAILURES:
            return None
        cool_off_ms = self.cool_off_ms
        self.off_until_ms = at_ms + cool_off_ms
        self.cool_off_ms = min(MOST_COOL_OFF_MS, 2 * cool_off_ms)
        return cool_off_ms

    def worked(self) -> None:
        self.failures, self.cool_off_ms = 0, COOL_OFF_MS

    def back(self, at_ms: float) -> bool:
        """It is tried again from now on: one more failure is enough then."""
        if self.off_until_ms is None or at_ms < self.off_until_ms:
            return False
        self.off_until_ms = None
        return True


@dataclass(slots=True)
class KvTrust:
    """Of one worker."""

    gives: _Side = field(default_factory=_Side)
    takes: _Side = field(default_factory=_Side)

    @property
    def off(self) -> int:
        """Bits of `Column.KV_SIDES` that it does not have for now. Who gives nothing gives no parts either."""
        gives = 0 if self.gives.off_until_ms is None else KV_GIVES
        takes = 0 if self.takes.off_until_ms is None else KV_TAKES
        return gives | takes | (KV_PARTS if gives or takes else 0)
