"""KV blocks of one engine: reference counts, the prefix cache over them, and LRU eviction.

A block is *free* when nobody refers to it. A free block that is cached keeps its content until it is handed out again,
so free blocks are handed out least recently used first, and a sequence gives its blocks back last block first: the end
of a prefix goes before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """Hands out block numbers 0..num_blocks-1. The caller checks `free` before it allocates."""

    __slots__ = ("_by_hash", "_copies", "_free", "_hashes", "_references", "evicted", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hashes: list[int | None] = [None] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[int, int] = {}
        # Two sequences that compute the same block side by side leave two copies of it.
        self._copies: dict[int, set[int]] = {}
        self.evicted: list[int] = []
        """Hashes that nobody can reuse any more, oldest first; whoever reads them clears the list."""

    @property
    def free(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that at least one sequence refers to."""
        return self.num_blocks - len(self._free)

    def cached_hashes(self) -> list[int]:
        """Hashes of all blocks that a new request could reuse."""
        return list(self._by_hash)

    def references(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._references[block]

    def is_free(self, block: int) -> bool:
        """Whether nobody refers to a block."""
        return block in self._free

    def lookup(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks of the longest cached prefix, `limit` blocks at most. Takes no reference."""
        found: list[int] = []
        by_hash = self._by_hash
        for key in hashes[:limit]:
            block = by_hash.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take a reference to blocks that `lookup` found."""
        references = self._references
        for block in blocks:
            if references[block] == 0:
                del self._free[block]
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """New blocks with one reference each; evicts the least recently used cached ones."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks wanted, {len(self._free)} free")
        taken: list[int] = []
        for _ in range(count):
            block, _nothing = self._free.popitem(last=False)
            if self._hashes[block] is not None:
                self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def mark_cached(self, block: int, key: int) -> None:
        """Make a full block reusable under its hash."""
        self._hashes[block] = key
        first = self._by_hash.setdefault(key, block)
        if first != block:
            self._copies.setdefault(key, {first}).add(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference back for each block of a sequence (in the sequence's order)."""
        references = self._references
        for block in reversed(blocks):
            references[block] -= 1
            if references[block] == 0:
                self._free[block] = None

    def clear_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while a sequence holds blocks."""
        if self.used:
            return False
        self._hashes = [None] * self.num_blocks
        self._by_hash.clear()
        self._copies.clear()
        return True

    def _forget(self, block: int) -> None:
        key = self._hashes[block]
        assert key is not None
        self._hashes[block] = None
        copies = self._copies.get(key)
        if copies is None:
            del self._by_hash[key]
            self.evicted.append(key)
            return
        copies.discard(block)
        self._by_hash[key] = next(iter(copies))
        if len(copies) == 1:
            del self._copies[key]
