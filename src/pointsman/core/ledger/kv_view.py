"""KvView: what the KV events of one worker are worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.ledger.events import KvFeedState
from pointsman.core.model.token_keys import KeySpec

CONFIDENT = 0.5
"""From here on the exact view of a worker is used, below it the approximate one."""


@dataclass(slots=True)
class KvView:
    """State of one worker's exact view. `spec` is learned from its events, or from the engine before any came."""

    spec: KeySpec | None = None
    blocks_of: dict[KeySpec, int] = field(default_factory=dict)
    """Blocks announced so far by how they were cut: engines with several kinds of cache announce odd ones, too."""
    state: KvFeedState = KvFeedState.OFF
    reason: str = "no KV events were looked for yet"
    since_ms: float = 0.0
    stored_blocks: int = 0
    """Blocks announced since the state began."""
    fault: str | None = None
    """What a check found: tokens or blocks of the engine are not those of the router, so nothing could ever match."""
    orphans: int = 0
    """Stores whose parent is not known here, since the state began. They are not believed."""

    def changed(self, state: KvFeedState, reason: str, at_ms: float) -> None:
        """The feed says so."""
        if state is not self.state:
            self.since_ms = at_ms
            self.stored_blocks = self.orphans = 0
        self.state, self.reason = state, reason

    def announced(self, spec: KeySpec, blocks: int) -> None:
        """So many blocks were cut like this: what most of them are like is the engine's way."""
        self.blocks_of[spec] = self.blocks_of.get(spec, 0) + blocks
        if self.spec is None or self.blocks_of[spec] > self.blocks_of.get(self.spec, 0):
            self.spec = spec

    def orphaned(self, at_ms: float) -> None:
        """A block came whose parent nobody announced: something before it was lost, so the view is not complete."""
        if self.state is KvFeedState.COMPLETE:
            self.changed(KvFeedState.PARTIAL, "blocks came whose parent is not known: events were lost", at_ms)
        self.orphans += 1

    def confidence(self, capacity_blocks: int) -> float:
        """0 to 1. A partial view heals as the cache turns over: what was there before is gone by then.

        `capacity_blocks` 0 = unknown: then a partial view stays doubtful until the feed is complete again.
        """
        if self.fault is not None:
            return 0.0
        if self.state is KvFeedState.COMPLETE:
            return 1.0
        if self.state is KvFeedState.PARTIAL and capacity_blocks:
            return min(1.0, self.stored_blocks / capacity_blocks)
        return 0.0
