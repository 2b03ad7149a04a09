"""Names of the blocks of a prompt, the same on every engine of ours that has the same block size."""

from __future__ import annotations

from array import array

from pointsman.core.engine_model.block_hash import block_hash, prompt_hashes, root_seed


def content_hashes(tokens: array[int], block_size: int, lora_name: str | None, cache_salt: str | None) -> list[int]:
    """Chained hashes of all blocks that so many tokens are in; the last one may not be full."""
    seed = root_seed(lora_name, cache_salt)
    hashes = prompt_hashes(tokens, block_size, seed)
    rest = tokens[len(hashes) * block_size :]
    if rest:
        hashes.append(block_hash(rest, hashes[-1] if hashes else seed))
    return hashes


def filled(number: int, tokens: int, block_size: int) -> int:
    """Tokens in block `number` of a sequence that has so many."""
    return max(0, min(block_size, tokens - number * block_size))
