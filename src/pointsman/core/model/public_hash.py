"""Sequence hashes as other products compute them (Dynamo, Mooncake's indexer), for queries by hash.

    local[i] = XXH3_64(tokens of block i as little-endian u32, seed)
    seq[0]   = local[0];   seq[i] = XXH3_64(seq[i-1] ++ local[i] as little-endian u64, 1337)
    seed     = 1337 + XXH3_64(adapter, 0) + XXH3_64(namespace, 1)   (mod 2^64; an absent part adds nothing)

A chain of our own (token_keys.py) costs one hash a block instead of two, so these are kept only where somebody asks.
"""

from __future__ import annotations

import struct

import xxhash

from pointsman.core.model.token_keys import TOKEN_BYTES, KeySpec

BASE_SEED = 1337
_U64 = (1 << 64) - 1
_PAIR = struct.Struct("<QQ")


def public_seed(lora_name: str | None = None, namespace: str | None = None) -> int:
    """Seed of a sequence's local hashes."""
    seed = BASE_SEED
    if lora_name:
        seed += xxhash.xxh3_64_intdigest(lora_name.encode(), 0)
    if namespace:
        seed += xxhash.xxh3_64_intdigest(namespace.encode(), 1)
    return seed & _U64


def sequence_hashes(packed: bytes, spec: KeySpec, seed: int, parent: int | None = None) -> list[int]:
    """Hashes of the full blocks of packed tokens that follow a block with hash `parent`; None = start of a sequence."""
    stride = spec.block_size_tokens * TOKEN_BYTES
    width = stride + spec.bigram * TOKEN_BYTES
    view = memoryview(packed)
    hashes: list[int] = []
    for number in range(spec.full_blocks(len(packed) // TOKEN_BYTES)):
        start = number * stride
        local = xxhash.xxh3_64_intdigest(view[start : start + width], seed)
        parent = local if parent is None else xxhash.xxh3_64_intdigest(_PAIR.pack(parent, local), BASE_SEED)
        hashes.append(parent)
    return hashes
