"""KV blocks of one engine: reference counts, the prefix cache over them, and LRU eviction.

A block is *free* when nobody refers to it. A free block that is cached keeps its content until it is handed out again,
so free blocks are handed out least recently used first, and a sequence gives its blocks back last block first: the end
of a prefix goes before its beginning.

Blocks without a hash are all alike and only counted; a cached block is known by its hash, or by a `Copy` where two
sequences computed the same block side by side. Blocks that were given back together stay together (`_Run`), so that
most of what happens to them happens to whole lists.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice


class Copy:
    """A cached block whose content another block has, too."""

    __slots__ = ("hash",)

    def __init__(self, key: int) -> None:
        self.hash = key


Key = int | Copy
"""Name of a cached block."""


class _Run:
    """Blocks that one sequence gave back: first those without content, then the cached ones from the end of `keys`."""

    __slots__ = ("keys", "live", "plain")

    def __init__(self, plain: int, keys: list[Key]) -> None:
        self.plain = plain
        self.keys = keys
        """Those that somebody took up again since are still listed, and not counted in `live`."""
        self.live = len(keys)


class BlockPool:
    """Hands out blocks. The caller checks `free` before it allocates."""

    __slots__ = ("_cached", "_copies", "_runs", "evicted", "free", "num_blocks", "on_evicted", "released", "stored")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = num_blocks
        """Blocks that can be handed out, cached ones included."""
        self.stored = 0
        """How often blocks were put into the cache."""
        self.released = 0
        """How often sequences gave blocks back."""
        self.evicted: list[int] = []
        """Hashes that nobody can reuse any more, oldest first; whoever reads them clears the list."""
        self.on_evicted: Callable[[Sequence[Key]], None] | None = None
        """Hears of each cached block that is handed out anew, before it is."""
        # Cached blocks: how many sequences hold one, or the run in which it lies free.
        self._cached: dict[Key, int | _Run] = {}
        # Free blocks, least recently used first.
        self._runs: OrderedDict[_Run, None] = OrderedDict()
        self._runs[_Run(num_blocks, [])] = None
        self._copies: dict[int, dict[Copy, None]] = {}

    @property
    def used(self) -> int:
        """Blocks that at least one sequence refers to."""
        return self.num_blocks - self.free

    def cached_hashes(self) -> list[int]:
        """Hashes of all blocks that a new request could reuse."""
        hashes = [key for key in self._cached if isinstance(key, int)]
        return hashes + [key for key in self._copies if key not in self._cached]

    def references(self, key: Key) -> int:
        """How many sequences hold a cached block."""
        state = self._cached[key]
        return state if isinstance(state, int) else 0

    def is_free(self, key: Key) -> bool:
        """Whether nobody refers to a cached block."""
        return isinstance(self._cached[key], _Run)

    def lookup(self, hashes: Sequence[int], limit: int) -> list[Key]:
        """Blocks of the longest cached prefix, `limit` blocks at most. Takes no reference."""
        found: list[Key] = []
        cached = self._cached
        for key in islice(hashes, limit):
            if key in cached:
                found.append(key)
                continue
            copies = self._copies.get(key)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def free_among(self, keys: Sequence[Key]) -> int:
        """How many of some cached blocks nobody refers to."""
        return list(map(type, map(self._cached.__getitem__, keys))).count(_Run)

    def acquire(self, keys: Sequence[Key]) -> None:
        """Take a reference to blocks that `lookup` found."""
        cached = self._cached
        touched: dict[_Run, None] = {}
        for key in keys:
            state = cached[key]
            if isinstance(state, int):
                cached[key] = state + 1
                continue
            state.live -= 1
            touched[state] = None
            self.free -= 1
            cached[key] = 1
        for run in touched:
            self._tidy(run)

    def allocate(self, count: int) -> None:
        """Blocks without content; evicts the least recently used cached ones."""
        if count > self.free:
            raise IndexError(f"{count} blocks wanted, {self.free} free")
        self.free -= count
        while count:
            run = next(iter(self._runs))
            taken = min(count, run.plain)
            run.plain -= taken
            count -= taken
            if count:
                count -= self._evict(run, count)
            if not run.plain and not run.live:
                del self._runs[run]

    def store(self, hashes: Sequence[int]) -> list[Key]:
        """Make full blocks that were allocated reusable under their hashes; their names, the references stay."""
        self.stored += 1
        cached = self._cached
        fresh: dict[Key, int | _Run] = dict.fromkeys(hashes, 1)
        # One after the other only where a block has copies: a hash that is there already, or twice in one sequence.
        new = len(fresh) == len(hashes) and cached.keys().isdisjoint(fresh)
        if new and (not self._copies or self._copies.keys().isdisjoint(fresh)):
            cached.update(fresh)
            return list(fresh)
        return [self._store(key) for key in hashes]

    def release(self, keys: Sequence[Key], plain: int) -> None:
        """Give back the blocks of a sequence: one reference each for cached ones, and those after them."""
        cached = self._cached
        states = list(map(cached.__getitem__, keys))
        if states.count(1) < len(keys):
            for key, state in zip(keys, states, strict=True):
                if isinstance(state, int) and state > 1:
                    cached[key] = state - 1
            keys = [key for key, state in zip(keys, states, strict=True) if state == 1]
        if not keys and not plain:
            return
        self.released += 1
        run = _Run(plain, list(keys))
        cached.update(dict.fromkeys(keys, run))
        self._runs[run] = None
        self.free += plain + len(keys)

    def clear_cache(self) -> bool:
        """Forget all cached blocks; refused (False) while a sequence holds blocks."""
        if self.used:
            return False
        if self.on_evicted is not None:
            self.on_evicted(list(self._cached))
        self._cached.clear()
        self._copies.clear()
        self._runs.clear()
        self._runs[_Run(self.num_blocks, [])] = None
        return True

    def _store(self, key: int) -> Key:
        name: Key = key
        if key in self._cached or key in self._copies:
            name = Copy(key)
            self._copies.setdefault(key, {})[name] = None
        self._cached[name] = 1
        return name

    def _tidy(self, run: _Run) -> None:
        """Let a run of which blocks were taken up not grow old with a list of them."""
        if not run.live and not run.plain:
            del self._runs[run]
        elif run.live * 2 < len(run.keys):
            cached = self._cached
            run.keys = [key for key in run.keys if cached.get(key) is run]

    def _evict(self, run: _Run, most: int) -> int:
        """Evict cached blocks of a run, `most` at most: how many."""
        keys, cached = run.keys, self._cached
        if run.live < len(keys):
            run.keys = keys = [key for key in keys if cached.get(key) is run]
        count = min(most, run.live)
        gone = keys[len(keys) - count :]
        gone.reverse()
        del keys[len(keys) - count :]
        run.live -= count
        if self.on_evicted is not None:
            self.on_evicted(gone)
        if not self._copies:
            deque(map(cached.__delitem__, gone), maxlen=0)
            self.evicted += gone  # type: ignore[arg-type]  # without copies all names are hashes
        else:
            for name in gone:
                self._forget(name)
        return count

    def _forget(self, name: Key) -> None:
        """A block is evicted: its hash is, if it was the last one."""
        del self._cached[name]
        if isinstance(name, int):
            if name not in self._copies:
                self.evicted.append(name)
            return
        copies = self._copies[name.hash]
        del copies[name]
        if copies:
            return
        del self._copies[name.hash]
        if name.hash not in self._cached:
            self.evicted.append(name.hash)
