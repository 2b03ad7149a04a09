"""KvLimits: how much a KV feed may keep, and from where on it counts as behind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvLimits:
    """Of one feed."""

    waiting_bytes: int = 64 * 1024 * 1024
    """So much may wait here: half of it as it comes, half behind batches that are missing. What comes beyond is
    dropped, which shows as a gap. A single batch that is larger breaks the connection."""
    behind_batches: int = 1_000
    """With more batches waiting the view is not to be used until they are applied."""
    behind_s: float = 1.0
    """The same when one waits for so long."""
    live_messages: int = 100
    """At our socket; further ones wait at the engine, which drops them when it has too many."""
    replay_messages: int = 1_000
    """Of a replay at our socket: engines drop what does not fit, and it has to be asked for again."""
