"""KV blocks of one engine: reference counts, the prefix cache over them, and LRU eviction.

A block is *free* when nobody refers to it. A free block that is cached keeps its content until it is handed out again,
so free blocks are handed out least recently used first, and a sequence gives its blocks back last block first: the end
of a prefix goes before its beginning.

Blocks without a hash are all alike and only counted; a cached block is known by its hash, or by a `Copy` where two
sequences computed the same block side by side.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice


class Copy:
    """A cached block whose content another block has, too."""

    __slots__ = ("hash",)

    def __init__(self, key: int) -> None:
        self.hash = key


class _Plain:
    """Free blocks without content that were given back together."""

    __slots__ = ()


Key = int | Copy
"""Name of a cached block."""


class BlockPool:
    """Hands out blocks. The caller checks `free` before it allocates."""

    __slots__ = ("_copies", "_free", "_references", "evicted", "free", "num_blocks", "stored")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = num_blocks
        """Blocks that can be handed out, cached ones included."""
        self.stored = 0
        """How often blocks were put into the cache."""
        self.evicted: list[int] = []
        """Hashes that nobody can reuse any more, oldest first; whoever reads them clears the list."""
        self._references: dict[Key, int] = {}
        # Least recently used first; the value is the number of blocks.
        self._free: OrderedDict[Key | _Plain, int] = OrderedDict()
        self._free[_Plain()] = num_blocks
        self._copies: dict[int, dict[Copy, None]] = {}

    @property
    def used(self) -> int:
        """Blocks that at least one sequence refers to."""
        return self.num_blocks - self.free

    def cached_hashes(self) -> list[int]:
        """Hashes of all blocks that a new request could reuse."""
        hashes = [key for key in self._references if type(key) is int]
        return hashes + [key for key in self._copies if key not in self._references]

    def references(self, key: Key) -> int:
        """How many sequences hold a cached block."""
        return self._references[key]

    def is_free(self, key: Key) -> bool:
        """Whether nobody refers to a cached block."""
        return key in self._free

    def lookup(self, hashes: Sequence[int], limit: int) -> list[Key]:
        """Blocks of the longest cached prefix, `limit` blocks at most. Takes no reference."""
        found: list[Key] = []
        references = self._references
        for key in islice(hashes, limit):
            if key in references:
                found.append(key)
                continue
            copies = self._copies.get(key)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def free_among(self, keys: Sequence[Key]) -> int:
        """How many of some cached blocks nobody refers to."""
        return list(map(self._references.__getitem__, keys)).count(0)

    def acquire(self, keys: Sequence[Key]) -> None:
        """Take a reference to blocks that `lookup` found."""
        references, free = self._references, self._free
        for key in keys:
            count = references[key]
            if not count:
                del free[key]
                self.free -= 1
            references[key] = count + 1

    def allocate(self, count: int) -> None:
        """Blocks without content; evicts the least recently used cached ones."""
        if count > self.free:
            raise IndexError(f"{count} blocks wanted, {self.free} free")
        self.free -= count
        free = self._free
        while count:
            key, blocks = free.popitem(last=False)
            if isinstance(key, _Plain):
                if blocks > count:
                    free[key] = blocks - count
                    free.move_to_end(key, last=False)
                    return
                count -= blocks
            else:
                self._forget(key)
                count -= 1

    def store(self, hashes: Sequence[int]) -> list[Key]:
        """Make full blocks that were allocated reusable under their hashes; their names, the references stay."""
        self.stored += 1
        references = self._references
        fresh: dict[Key, int] = dict.fromkeys(hashes, 1)
        # One after the other only where a block has copies: a hash that is there already, or twice in one sequence.
        new = len(fresh) == len(hashes) and references.keys().isdisjoint(fresh)
        if new and (not self._copies or self._copies.keys().isdisjoint(fresh)):
            references.update(fresh)
            return list(fresh)
        return [self._store(key) for key in hashes]

    def release(self, keys: Sequence[Key], plain: int) -> None:
        """Give back the blocks of a sequence: one reference each for cached ones, and those after them."""
        references, free = self._references, self._free
        if plain:
            free[_Plain()] = plain
        freed = plain
        for key in reversed(keys):
            count = references[key] - 1
            references[key] = count
            if not count:
                free[key] = 1
                freed += 1
        self.free += freed

    def clear_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while a sequence holds blocks."""
        if self.used:
            return False
        self._references.clear()
        self._copies.clear()
        self._free.clear()
        self._free[_Plain()] = self.num_blocks
        return True

    def _store(self, key: int) -> Key:
        name: Key = key
        if key in self._references or key in self._copies:
            name = Copy(key)
            self._copies.setdefault(key, {})[name] = None
        self._references[name] = 1
        return name

    def _forget(self, name: Key) -> None:
        del self._references[name]
        if isinstance(name, Copy):
            copies = self._copies[name.hash]
            del copies[name]
            if copies:
                return
            del self._copies[name.hash]
            if name.hash not in self._references:
                self.evicted.append(name.hash)
        elif name not in self._copies:
            self.evicted.append(name)
