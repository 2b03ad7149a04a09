"""ChainCache: keys of token blocks that were computed before, so that a growing conversation pays for what is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import xxhash

from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.token_keys import NO_EXTRAS, TOKEN_BYTES, KeySpec, chain, token_seed

RUN_BLOCKS = 32
"""Blocks that are looked up at once. A hit costs one hash over all of them instead of one each, and no new integers."""


class ChainCache:
    """Runs of blocks by what came before and their own tokens, the least recently used go first.

    Args:
        max_runs: bound; a run of 32 blocks of 16 tokens takes about 3.5 kB.
    """

    def __init__(self, max_runs: int = 8192) -> None:
        self._max_runs = max_runs
        self._runs: OrderedDict[int, tuple[bytes, KeySpec, int, list[int]]] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def keys(
        self, packed: bytes, spec: KeySpec, lora_name: str | None = None, extras: Mapping[int, bytes] = NO_EXTRAS
    ) -> BlockKeys:
        """The same as token_keys.token_block_keys."""
        stride = RUN_BLOCKS * spec.block_size_tokens * TOKEN_BYTES
        width = stride + spec.bigram * TOKEN_BYTES
        parent = token_seed(spec, lora_name)
        keys: list[int] = []
        start = 0
        while start + width <= len(packed):
            run = packed[start : start + width]
            inside = _inside(extras, len(keys), RUN_BLOCKS) if extras else NO_EXTRAS
            found = chain(run, spec, parent, inside) if inside else self._run(run, spec, parent)
            keys += found
            parent = found[-1]
            start += stride
        rest = _inside(extras, len(keys), len(packed)) if extras else NO_EXTRAS
        keys += chain(packed[start:], spec, parent, rest)
        return BlockKeys(tuple(keys), spec.block_size_tokens, BlockUnit.TOKENS, len(packed) // TOKEN_BYTES)

    def __len__(self) -> int:
        return len(self._runs)

    def _run(self, run: bytes, spec: KeySpec, parent: int) -> list[int]:
        name = xxhash.xxh3_64_intdigest(run, parent)
        known = self._runs.get(name)
        if known is not None and known[2] == parent and known[0] == run and (known[1] is spec or known[1] == spec):
            self._runs.move_to_end(name)
            self.hits += 1
            return known[3]
        self.misses += 1
        keys = chain(run, spec, parent)
        self._runs[name] = (run, spec, parent, keys)
        if len(self._runs) > self._max_runs:
            self._runs.popitem(last=False)
        return keys


def _inside(extras: Mapping[int, bytes], first: int, count: int) -> dict[int, bytes]:
    """Extras of `count` blocks from `first` on, numbered from there."""
    return {number - first: extra for number, extra in extras.items() if first <= number < first + count}
