"""Keys of token blocks: what KV events of engines and tokenized prompts are compared by.

`key[i] = XXH3_64(tokens of block i ++ what else keys it, seed = key[i-1]) mod 2^60`, `key[-1] = token_seed`.
60 bits, because Python's integers below 2^60 take a third less memory, and an index holds millions of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

from pointsman.core.model.blocks import BlockKeys, BlockUnit, salt_seed

BlockHash = int | bytes
"""An engine's own id of a block: opaque, comparable within one engine only."""
GPU = "gpu"
"""The medium in which an engine computes. Others are tiers below it: `cpu`, `disk`, or what the engine calls them."""

KEY_MASK = (1 << 60) - 1
TOKEN_BYTES = 4
NO_EXTRAS: Mapping[int, bytes] = {}


@dataclass(frozen=True, slots=True)
class KeySpec:
    """How one engine cuts token sequences into blocks. Keys of different specs have nothing in common."""

    block_size_tokens: int
    bigram: bool = False
    """A block is keyed by one token more than its stride: engines with EAGLE speculation key their cache by pairs."""

    def full_blocks(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens fills."""
        return max(0, tokens - self.bigram) // self.block_size_tokens


def token_seed(spec: KeySpec, lora_name: str | None = None) -> int:
    """Seed of a chain: what applies to every block of a sequence."""
    shape = b"tokens %d %d" % (spec.block_size_tokens, spec.bigram)
    return salt_seed(shape, (lora_name or "").encode()) & KEY_MASK


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as unsigned 32-bit numbers in this machine's byte order. Raises OverflowError for a negative one."""
    return array("I", tokens).tobytes()


def chain(packed: bytes, spec: KeySpec, parent: int, extras: Mapping[int, bytes] = NO_EXTRAS) -> list[int]:
    """Keys of the full blocks of packed tokens that follow a block with key `parent` (or the seed).

    `extras`: block number → what else keys it (cache salt, hashes of images), not empty.
    """
    digest = xxhash.xxh3_64_intdigest
    stride = spec.block_size_tokens * TOKEN_BYTES
    width = stride + spec.bigram * TOKEN_BYTES
    view = memoryview(packed)
    keys: list[int] = []
    key = parent
    for number in range(spec.full_blocks(len(packed) // TOKEN_BYTES)):
        start = number * stride
        block = view[start : start + width]
        extra = extras.get(number) if extras else None
        key = digest(block if extra is None else bytes(block) + extra, key) & KEY_MASK
        keys.append(key)
    return keys


def token_block_keys(
    packed: bytes, spec: KeySpec, lora_name: str | None = None, extras: Mapping[int, bytes] = NO_EXTRAS
) -> BlockKeys:
    """Keys of a whole prompt from its packed tokens."""
    keys = chain(packed, spec, token_seed(spec, lora_name), extras)
    return BlockKeys(tuple(keys), spec.block_size_tokens, BlockUnit.TOKENS, len(packed) // TOKEN_BYTES)


def salt_extra(cache_salt: str) -> bytes:
    """Extra of the first block of a salted prompt; its length goes first, so that no salt is the start of another."""
    salt = cache_salt.encode("utf-8", "surrogatepass")
    return b"salt" + len(salt).to_bytes(8, "little") + salt
