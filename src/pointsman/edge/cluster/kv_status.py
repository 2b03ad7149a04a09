"""KvFeedStatus: how one worker's KV events are doing, for people."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.ledger.events import KvFeedState
from pointsman.core.model.worker import WorkerId


@dataclass(frozen=True, slots=True)
class KvFeedStatus:
    """Counts are since the feed was opened."""

    worker: WorkerId
    state: KvFeedState
    reason: str
    since_ms: float
    endpoint: str | None = None
    last_seq: int | None = None
    """Of the last batch that was applied."""
    gaps: int = 0
    """Times that batches were missing."""
    losses: int = 0
    """Times that they could not be had any more."""
    replays: int = 0
    restarts: int = 0
    duplicates: int = 0
    dropped: int = 0
    """Batches that were let go because too much waited; unless a replay brings them, that is a loss."""
    batches: int = 0
    events: int = 0
    bytes: int = 0
    unusable: int = 0
    """Batches that could not be read, and events that could not be used."""
    lag_s: float | None = None
    """From the engine's time stamp of the last batch to when it was applied, by two clocks; None before any came."""
