"""KV events: what changed in an engine's set of cached blocks."""

from __future__ import annotations

from dataclasses import dataclass

GPU = "GPU"
"""Medium of the blocks that the engine computes on."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive full blocks of one sequence became reusable."""

    block_hashes: tuple[int, ...]
    """Chained hashes, unsigned 64 bit, first block first. Those of a lower tier are not consecutive."""
    parent_block_hash: int | None
    """Block before the first one of this event; None = start of the sequence, or a lower tier, which does not know."""
    token_ids: tuple[int, ...]
    """Tokens of all the blocks; empty where the request had no contents, and for a lower tier."""
    block_size: int
    lora_name: str | None = None
    cache_salt: str | None = None
    """Set only where the event holds the first block of its sequence, as vLLM does it."""
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were evicted: nobody can reuse them any more from that medium."""

    block_hashes: tuple[int, ...]
    medium: str = GPU


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole prefix cache was emptied."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
