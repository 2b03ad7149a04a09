"""PrefixIndex: which blocks each worker's engine says it holds, exactly, for each medium.

Two maps do the work: block key → bit mask of seats, one a medium, and engine hash → block key. Engines that use one
hash for one block share an entry of the second map; an engine that means another block by it keeps its own entry.
Nothing here is believed without an event that said so, and every removal is by the engine's own hash.

A worker has a *seat*, a bit of the masks. When all that it held is gone it takes another one, and what the old seat
holds is swept away a little at a time: nobody waits for a million blocks.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from pointsman.core.ledger.runs import leading_masks, leading_runs
from pointsman.core.model.token_keys import GPU, BlockHash

_MOVED_PER_BLOCK = 8
"""Names that are looked at for each block stored while they are being cleaned: nobody ever waits for all of them."""
_SLACK = 4096
"""Entries that may be garbage before a list is cleaned, whatever its size."""


@dataclass(slots=True)
class _Shelf:
    """What one seat holds in one medium."""

    count: int = 0
    log: array[int] = field(default_factory=lambda: array("Q"))
    """Keys in the order in which they came; removed ones stay until it is cleaned."""


class PrefixIndex:
    """Keys are those of core/model/token_keys."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[int, int]] = {GPU: {}}
        self._key_of: dict[BlockHash, int] = {}
        self._old_key_of: dict[BlockHash, int] = {}
        """While names are being cleaned: those that were not looked at yet."""
        self._own_key_of: dict[int, dict[BlockHash, int]] = {}
        self._shelves: dict[tuple[int, str], _Shelf] = {}
        self._masks: dict[int, int] = {}
        self._seats = 0
        self._free: list[int] = []
        self._retired: deque[tuple[int, list[tuple[dict[int, int], array[int]]]]] = deque()
        self._clean_names_at = _SLACK

    # ---- events

    def key_of(self, seat: int, block_hash: BlockHash) -> int | None:
        """The key that the seat's engine means by a hash; None if it does not hold such a block in any medium."""
        own = self._own_key_of.get(seat)
        key = own.get(block_hash) if own else None
        if key is None:
            key = self._named(block_hash)
        return key if key is not None and self._holds(seat, key) else None

    def store(self, seat: int, medium: str, hashes: Sequence[BlockHash], keys: Sequence[int]) -> int:
        """The seat holds these blocks. Returns how many it did not hold there before."""
        holders = self._holders.setdefault(medium, {})
        shelf = self._shelves.setdefault((seat, medium), _Shelf())
        bit = self._mask(1 << seat)
        append = shelf.log.append
        before = shelf.count
        for block_hash, key in zip(hashes, keys, strict=True):
            if medium != GPU:
                # Tiers may announce a block with less than it is keyed by: what it was on the GPU is the whole truth.
                known = self.key_of(seat, block_hash)
                key = key if known is None else known
            self._name(seat, block_hash, key)
            mask = holders.get(key)
            if mask is None:
                holders[key] = bit
            elif mask & bit:
                continue
            else:
                holders[key] = self._mask(mask | bit)
            append(key)
            shelf.count += 1
        if len(shelf.log) > 2 * shelf.count + _SLACK:
            self._clean_log(shelf, holders, bit)
        self._clean_names(_MOVED_PER_BLOCK * len(hashes))
        self.sweep(_MOVED_PER_BLOCK * len(hashes))
        return shelf.count - before

    def remove(self, seat: int, medium: str, hashes: Iterable[BlockHash]) -> list[int]:
        """The seat no longer holds these blocks there. Returns the keys of those that it had held."""
        holders = self._holders.get(medium)
        shelf = self._shelves.get((seat, medium))
        if holders is None or shelf is None:
            return []
        own = self._own_key_of.get(seat)
        removed: list[int] = []
        for block_hash in hashes:
            key = own.get(block_hash) if own else None
            if key is None:
                key = self._named(block_hash)
            if key is not None and self._drop(holders, key, seat):
                removed.append(key)
                if own and not self._holds(seat, key):
                    own.pop(block_hash, None)
        shelf.count -= len(removed)
        return removed

    # ---- seats

    def take_seat(self) -> int:
        """A seat that holds nothing."""
        if self._free:
            return self._free.pop()
        self._seats += 1
        return self._seats - 1

    def retire(self, seat: int) -> None:
        """All that it held is gone. Its masks are swept later: whoever asks must not know this seat any more."""
        self._own_key_of.pop(seat, None)
        logs = [(self._holders[m], shelf.log) for (owner, m), shelf in self._shelves.items() if owner == seat]
        self._shelves = {name: shelf for name, shelf in self._shelves.items() if name[0] != seat}
        self._retired.append((seat, logs))
        self.sweep(_SLACK)

    def sweep(self, at_most: int) -> None:
        """Drop some of what retired seats held; a seat that is empty may be taken again."""
        while self._retired and at_most > 0:
            seat, logs = self._retired[0]
            while logs and at_most > 0:
                holders, log = logs[-1]
                for _ in range(min(at_most, len(log))):
                    self._drop(holders, log.pop(), seat)
                    at_most -= 1
                if not log:
                    logs.pop()
            if not logs:
                self._retired.popleft()
                self._free.append(seat)

    # ---- questions

    def match(self, keys: Sequence[int], medium: str = GPU) -> dict[int, int]:
        """Seat → how many leading blocks it holds there; seats with none are left out.

        Always a walk over all keys, never a jump: at one dictionary look-up each it costs less than hashing the prompt
        did, and it is right whatever an engine evicts first.
        """
        holders = self._holders.get(medium)
        return leading_runs(leading_masks(holders, keys)) if holders else {}

    def mask_of(self, key: int) -> int | None:
        """Bit mask of the seats that hold a block on the GPU; None for nobody."""
        return self._holders[GPU].get(key)

    def match_any_medium(self, keys: Sequence[int]) -> dict[int, int]:
        """The same, over all media together: a block counts wherever the seat holds it."""
        media = list(self._holders.values())
        return leading_runs([reduce(or_, (holders.get(key, 0) for holders in media)) for key in keys])

    def match_tiers(self, keys: Sequence[int]) -> dict[int, dict[str, int]]:
        """Seat → medium → leading blocks that it holds in the tiers from the GPU up to that one."""
        found: dict[int, dict[str, int]] = {}
        masks = [0] * len(keys)
        for medium in sorted(self._holders, key=_tier):
            holders = self._holders[medium]
            masks = [mask | holders.get(key, 0) for mask, key in zip(masks, keys, strict=True)]
            for seat, blocks in leading_runs(masks).items():
                found.setdefault(seat, {})[medium] = blocks
        return found

    def is_held(self, key: int) -> bool:
        """Anybody holds it, in any medium."""
        return any(key in holders for holders in self._holders.values())

    @property
    def has_tiers(self) -> bool:
        """Anybody holds anything outside of the GPU."""
        return any(holders for medium, holders in self._holders.items() if medium != GPU)

    def count(self, seat: int, medium: str = GPU) -> int:
        """Blocks that the seat holds there."""
        shelf = self._shelves.get((seat, medium))
        return shelf.count if shelf else 0

    def media(self, seat: int) -> list[str]:
        """Media in which the seat holds anything."""
        return [medium for (owner, medium), shelf in self._shelves.items() if owner == seat and shelf.count]

    def keys(self, seat: int, medium: str = GPU) -> set[int]:
        """All keys that the seat holds there. For tests and dumps: it walks through everything."""
        bit = 1 << seat
        return {key for key, mask in self._holders.get(medium, {}).items() if mask & bit}

    def __len__(self) -> int:
        """Distinct blocks, over all media."""
        return sum(map(len, self._holders.values()))

    # ---- names

    def _name(self, seat: int, block_hash: BlockHash, key: int) -> None:
        known = self._named(block_hash)
        if known is None:
            self._key_of[block_hash] = key
        elif known != key:
            if self.is_held(known):
                self._own_key_of.setdefault(seat, {})[block_hash] = key
            else:
                self._key_of[block_hash] = key  # what it meant before is gone everywhere
        else:
            own = self._own_key_of.get(seat)
            if own:
                own.pop(block_hash, None)

    def _named(self, block_hash: BlockHash) -> int | None:
        key = self._key_of.get(block_hash)
        return self._old_key_of.get(block_hash) if key is None and self._old_key_of else key

    def _clean_names(self, at_most: int) -> None:
        """Let go of names of blocks that nobody holds, a few at a time."""
        old = self._old_key_of
        if old:
            for _ in range(min(at_most, len(old))):
                block_hash, key = old.popitem()
                if self.is_held(key):
                    self._key_of.setdefault(block_hash, key)
            if not old:
                # As many again may come before the next round: engines that hash alike have fewer names than blocks.
                self._clean_names_at = 2 * len(self._key_of) + _SLACK
        elif len(self._key_of) > self._clean_names_at:
            self._old_key_of, self._key_of = self._key_of, {}

    def _clean_log(self, shelf: _Shelf, holders: dict[int, int], bit: int) -> None:
        shelf.log = array("Q", dict.fromkeys(key for key in shelf.log if holders.get(key, 0) & bit))

    # ---- masks

    def _holds(self, seat: int, key: int) -> bool:
        bit = 1 << seat
        return any(holders.get(key, 0) & bit for holders in self._holders.values())

    def _drop(self, holders: dict[int, int], key: int, seat: int) -> bool:
        bit = 1 << seat
        mask = holders.get(key, 0)
        if not mask & bit:
            return False
        if mask == bit:
            del holders[key]
        else:
            holders[key] = self._mask(mask & ~bit)
        return True

    def _mask(self, mask: int) -> int:
        """The one object for a mask: there are few different ones, and many blocks."""
        if len(self._masks) > 65_536:
            self._masks.clear()
        return self._masks.setdefault(mask, mask)


def _tier(medium: str) -> tuple[int, str]:
    """GPU, then host memory, then disk, then whatever an engine calls its own."""
    order = {GPU: 0, "cpu": 1, "cpu_pinned": 1, "disk": 2}
    return order.get(medium, 3), medium
