"""HealthSnapshot: a worker's health as people and metrics are shown it."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.ledger.health.facts import Cause, FactSnapshot
from pointsman.core.ledger.health.standing import Position


@dataclass(frozen=True, slots=True)
class CanarySnapshot:
    """What canaries say of a worker."""

    off: str | None
    """Why it gets none."""
    last: str | None
    """How the last one went; None: there was none."""
    reason: str
    at_ms: float | None
    total_ms: float | None
    """How long it took."""


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """Times in ms of the ledger's clock."""

    live: FactSnapshot
    ready: FactSnapshot
    serving: FactSnapshot
    position: Position
    cause: Cause | None
    """Of a doubt, or of being left out."""
    reason: str
    """The same in words."""
    until_ms: float | None
    """When its cool-off is over; None: it has none."""
    paused_until_ms: float | None
    kept: bool
    """It would be left out, but too many others are."""
    failures_in_row: int
    proof_ms: float | None
    """When something proved last that tokens flow; None: nothing yet."""
    canary: CanarySnapshot
