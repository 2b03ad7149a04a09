"""Standing: whether a worker is trusted, in doubt, left out, or about to be tried again: a circuit breaker."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.settings import HealthSettings

_FORGIVEN_AFTER = 10.0
"""Cool-offs that a worker has to be trusted for until the next one begins small again."""


class Position(enum.StrEnum):
    """Where a worker stands."""

    TRUSTED = "trusted"
    SUSPECT = "suspect"
    """It still gets requests; a canary or a second look decides."""
    OUT = "out"
    """It gets none until its cool-off is over."""
    TRIAL = "trial"
    """The cool-off is over: one canary, or one request, shows whether it is trusted again."""


@dataclass(slots=True)
class Standing:
    """Of one worker. Nothing happens by itself: time comes with each call."""

    position: Position = Position.TRUSTED
    cause: Cause | None = None
    """Of the doubt, or of being left out."""
    reason: str = ""
    since_ms: float = 0.0
    since_out_ms: float = 0.0
    """When it was left out; trials between do not count."""
    until_ms: float = 0.0
    """End of the cool-off."""
    cool_off_ms: float = 0.0
    """The last one; 0: there was none lately."""

    @property
    def left_out(self) -> bool:
        """It is not for ordinary requests."""
        return self.position in (Position.OUT, Position.TRIAL)

    def doubt(self, cause: Cause, reason: str, at_ms: float) -> None:
        """Something speaks against a trusted worker."""
        if self.position is Position.TRUSTED:
            self._forgive(at_ms)
            self._move(Position.SUSPECT, at_ms)
        if self.position is Position.SUSPECT:
            self.cause, self.reason = cause, reason

    def out(self, cause: Cause, reason: str, at_ms: float, settings: HealthSettings) -> None:
        """Enough speaks against it."""
        if self.position is Position.OUT:
            return
        if self.position is Position.TRUSTED:
            self._forgive(at_ms)
        if self.position is not Position.TRIAL:
            self.since_out_ms = at_ms
        longer = max(settings.cool_off_ms, 2.0 * self.cool_off_ms)
        self.cool_off_ms = min(longer, max(settings.cool_off_ms, settings.most_cool_off_ms))
        self.until_ms = at_ms + self.cool_off_ms
        self.cause, self.reason = cause, reason
        self._move(Position.OUT, at_ms)

    def cooled_off(self, at_ms: float) -> bool:
        """True if its cool-off is over now, which makes it a trial."""
        if self.position is not Position.OUT or at_ms < self.until_ms:
            return False
        self._move(Position.TRIAL, at_ms)
        return True

    def trust(self, at_ms: float) -> None:
        """Nothing speaks against it any more. The next cool-off is longer all the same, for a while."""
        if self.position is not Position.TRUSTED:
            self._move(Position.TRUSTED, at_ms)
            self.cause, self.reason = None, ""

    def _forgive(self, at_ms: float) -> None:
        if at_ms - self.since_ms >= _FORGIVEN_AFTER * self.cool_off_ms:
            self.cool_off_ms = 0.0

    def _move(self, position: Position, at_ms: float) -> None:
        self.position = position
        self.since_ms = at_ms
