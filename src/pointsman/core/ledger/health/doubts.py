"""Doubts: when one ends by itself."""

from __future__ import annotations

from collections.abc import Iterable

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.standing import Position


def settle_doubts(entries: Iterable[WorkerEntry], settings: HealthSettings, at_ms: float) -> None:
    """End doubts that nothing keeps up, where nobody looks at streams."""
    for entry in entries:
        if entry.health.standing.position is Position.SUSPECT:
            end_doubt(entry, settings, at_ms)


def end_doubt(entry: WorkerEntry, settings: HealthSettings, at_ms: float) -> None:
    """A doubt ends when what raised it is over; one that only a canary can answer ends by tokens, or with time."""
    health = entry.health
    standing = health.standing
    if standing.position is not Position.SUSPECT:
        return
    if standing.cause in (Cause.CANARY, Cause.CONNECTIONS):
        lasted_ms = at_ms - standing.since_ms
        if health.last_token_ms <= standing.since_ms and lasted_ms < 4.0 * settings.canary_ms:
            return
    health.trust(Cause.TOKENS, f"what spoke against it is over: {standing.reason}", at_ms)
