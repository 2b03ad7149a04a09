"""Block keys: chained hashes of consecutive blocks of a prompt.

Key *i* stands for the whole prefix up to the end of block *i*: two prompts share key *i* exactly when they share
everything up to there (and the salt), short of a 64-bit collision.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import xxhash


class BlockUnit(enum.StrEnum):
    """What a block is counted in."""

    BYTES = "bytes"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """The keys of one prompt. A last block that is not full has no key."""

    keys: tuple[int, ...]
    """Chained unsigned 64-bit keys, first block first."""
    block_size: int
    unit: BlockUnit
    length: int
    """Length of the whole prompt in `unit`."""


NO_KEYS = BlockKeys((), 1, BlockUnit.BYTES, 0)
"""For requests without a prompt that can be looked up."""


def salt_seed(*parts: bytes) -> int:
    """Seed of a chain from what must keep equal prompts apart: model, adapter, tenant, cache salt, tools.

    Each part is preceded by its length, so that ("ab", "c") and ("a", "bc") differ.
    """
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.intdigest()


def text_block_keys(text: bytes, block_bytes: int, seed: int) -> BlockKeys:
    """Keys of a text: `key[i] = XXH3_64(block[i], seed=key[i-1])`, `key[-1] = seed`, blocks of `block_bytes` bytes."""
    if block_bytes < 1:
        raise ValueError(f"block_bytes must be at least 1, not {block_bytes}")
    digest = xxhash.xxh3_64_intdigest
    view = memoryview(text)
    keys: list[int] = []
    key = seed
    for start in range(0, len(text) - block_bytes + 1, block_bytes):
        key = digest(view[start : start + block_bytes], key)
        keys.append(key)
    return BlockKeys(tuple(keys), block_bytes, BlockUnit.BYTES, len(text))
