"""KvView: what the KV events of one worker are worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.ledger.events import KvFeedState
from pointsman.core.model.token_keys import KeySpec

ORPHANS_COUNT = 5.0
"""How many times an orphan weighs: a tenth of them among what was announced takes half of the confidence."""
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
    settled: KvFeedState = KvFeedState.OFF
    """The last state that was not SYNCING."""
    stored_blocks: int = 0
    """Blocks announced since the view began."""
    fault: str | None = None
    """What a check found: tokens or blocks of the engine are not those of the router, so nothing could ever match."""
    orphan_blocks: int = 0
    """Blocks without a known parent since the view began. They are not believed."""

    def changed(self, state: KvFeedState, reason: str, at_ms: float) -> None:
        """The feed says so. A view that was complete has nothing to heal from before; a partial one goes on healing."""
        if state is not self.state:
            self.since_ms = at_ms
        if state is KvFeedState.PARTIAL and self.settled is KvFeedState.COMPLETE:
            self.begin_anew()
        if state is not KvFeedState.SYNCING:
            self.settled = state
        self.state, self.reason = state, reason

    def begin_anew(self) -> None:
        """Nothing is held any more, or something was lost that nobody knows."""
        self.stored_blocks = self.orphan_blocks = 0

    def announced(self, spec: KeySpec, blocks: int) -> None:
        """So many blocks were cut like this: what most of them are like is the engine's way."""
        self.blocks_of[spec] = self.blocks_of.get(spec, 0) + blocks
        if self.spec is None or self.blocks_of[spec] > self.blocks_of.get(self.spec, 0):
            self.spec = spec

    def orphaned(self, blocks: int) -> None:
        """Blocks came whose parent nobody announced: they are not believed, and the rest a little less."""
        self.orphan_blocks += blocks

    def confidence(self, capacity_blocks: int) -> float:
        """0 to 1. A partial view heals as the cache turns over: what was there before is gone by then.

        `capacity_blocks` 0 = unknown: then a partial view stays doubtful until the feed is complete again.
        """
        if self.fault is not None:
            return 0.0
        announced = self.stored_blocks + self.orphan_blocks
        sound = 1.0 - min(1.0, ORPHANS_COUNT * self.orphan_blocks / announced) if announced else 1.0
        if self.state is KvFeedState.COMPLETE:
            return sound
        if self.state is KvFeedState.PARTIAL and capacity_blocks:
            return sound * min(1.0, self.stored_blocks / capacity_blocks)
        return 0.0
