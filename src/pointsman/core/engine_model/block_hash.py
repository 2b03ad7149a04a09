"""Chained hashes of an engine's own blocks: `hash[i] = XXH3_64(tokens of block i, seed=hash[i-1])`.

These are the engine's ids, opaque to everybody else, as those of a real engine are.
"""

from __future__ import annotations

from array import array

import xxhash

from pointsman.core.model.blocks import salt_seed

NO_SALT_SEED = 0
"""Seed of the chain of a request without an adapter and without a cache salt."""


def root_seed(lora_name: str | None, cache_salt: str | None) -> int:
    """Seed of a chain: equal prompts under another adapter or cache salt share nothing."""
    if lora_name is None and cache_salt is None:
        return NO_SALT_SEED
    return salt_seed((lora_name or "").encode(), (cache_salt or "").encode())


def block_hash(block: array[int], parent: int) -> int:
    """Hash of one full block; `parent` is the hash before it, or the root seed."""
    return xxhash.xxh3_64_intdigest(block.tobytes(), parent)


def prompt_hashes(tokens: array[int], block_size: int, seed: int) -> list[int]:
    """Hashes of all full blocks of a prompt."""
    digest = xxhash.xxh3_64_intdigest
    view = memoryview(tokens.tobytes())
    block_bytes = block_size * tokens.itemsize
    hashes: list[int] = []
    key = seed
    for start in range(0, len(view) - block_bytes + 1, block_bytes):
        key = digest(view[start : start + block_bytes], key)
        hashes.append(key)
    return hashes
