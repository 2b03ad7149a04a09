"""KV events: what changed in an engine's set of cached blocks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive full blocks of one sequence became reusable."""

    block_hashes: tuple[int, ...]
    """Chained hashes, unsigned 64 bit, first block first."""
    parent_block_hash: int | None
    """Block before the first one of this event; None = start of the sequence."""
    token_ids: tuple[int, ...]
    """Tokens of all the blocks."""
    block_size: int
    lora_name: str | None = None
    cache_salt: str | None = None
    """Set only where the event holds the first block of its sequence, as vLLM does it."""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks were evicted: nobody can reuse them any more."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole prefix cache was emptied."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
