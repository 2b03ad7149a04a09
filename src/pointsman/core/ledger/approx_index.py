"""ApproxIndex: which prompt blocks were sent where, so which worker probably still holds them.

Bounded for each worker by what its KV cache can hold, and by a time to live. A worker's set stays prefix-closed: a
chain is touched from its end to its start, so a block is never newer than the one before it, and the oldest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from pointsman.core.ledger.runs import leading_masks, leading_runs


@dataclass(slots=True)
class _Held:
    capacity_blocks: int
    last_ms: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Block key → when it was last used, oldest first."""


class ApproxIndex:
    """Block keys → slots of workers thought to hold them, as a bit mask. A slot is the worker's number in the table."""

    def __init__(self, ttl_ms: float) -> None:
        self._ttl_ms = ttl_ms
        self._holders: dict[int, int] = {}
        self._held: dict[int, _Held] = {}
        self.pushed_out: list[int] = []
        """Blocks that the last prompt pushed out where it went."""

    def add_worker(self, slot: int, capacity_blocks: int) -> None:
        """Start with nothing for this slot."""
        self.clear(slot)
        self._held[slot] = _Held(max(1, capacity_blocks))

    def resize(self, slot: int, capacity_blocks: int) -> None:
        """The cache turned out to hold another number of blocks."""
        held = self._held[slot]
        held.capacity_blocks = max(1, capacity_blocks)
        self._trim(slot, held)

    def remove_worker(self, slot: int) -> None:
        """Forget the slot and all that it held."""
        self.clear(slot)
        self._held.pop(slot, None)

    def clear(self, slot: int) -> None:
        """The worker's cache is empty now."""
        held = self._held.get(slot)
        if held is not None:
            for key in held.last_ms:
                self._drop_holder(key, slot)
            held.last_ms.clear()

    def record(self, slot: int, keys: Sequence[int], now_ms: float) -> int:
        """These leading blocks of a prompt went there. Returns how many of them, from the first on, it had before."""
        self.pushed_out = []
        held = self._held.get(slot)
        if held is None:
            return 0
        keys = keys[: held.capacity_blocks]
        last_ms, holders, bit = held.last_ms, self._holders, 1 << slot
        known = 0
        for key in keys:
            if key not in last_ms:
                break
            known += 1
        for key in reversed(keys):
            if key in last_ms:
                last_ms.move_to_end(key)
            else:
                holders[key] = holders.get(key, 0) | bit
            last_ms[key] = now_ms
        self.pushed_out = self._trim(slot, held)
        return known

    def forget(self, slot: int, keys: Sequence[int], first: int) -> None:
        """Blocks from number `first` on never got there. What a chain that did arrive shares with them goes too."""
        held = self._held.get(slot)
        if held is None:
            return
        for key in keys[first:]:
            if held.last_ms.pop(key, None) is not None:
                self._drop_holder(key, slot)

    def match(self, keys: Sequence[int]) -> dict[int, int]:
        """Slot → how many leading blocks it holds; slots with none are left out."""
        return leading_runs(leading_masks(self._holders, keys))

    def mask_of(self, key: int) -> int | None:
        """Bit mask of the slots that hold a block; None for nobody."""
        return self._holders.get(key)

    def expire(self, now_ms: float) -> None:
        """Let go of what was last used longer ago than the time to live."""
        limit = now_ms - self._ttl_ms
        for slot, held in self._held.items():
            last_ms = held.last_ms
            while last_ms and next(iter(last_ms.values())) < limit:
                key, _ = last_ms.popitem(last=False)
                self._drop_holder(key, slot)

    def blocks_held(self, slot: int) -> int:
        """Number of blocks thought to be there."""
        held = self._held.get(slot)
        return len(held.last_ms) if held else 0

    def newest(self, slot: int, most: int) -> list[int]:
        """Blocks thought to be there, the one that was used last first. Recorded elsewhere they keep their order."""
        held = self._held.get(slot)
        return list(islice(reversed(held.last_ms), most)) if held else []

    def capacity(self, slot: int) -> int:
        """Number of blocks that there is room for, at least one."""
        return self._held[slot].capacity_blocks

    def filled(self, slot: int) -> float:
        """Share of the room that is taken, 0 to 1."""
        held = self._held[slot]
        return len(held.last_ms) / held.capacity_blocks

    def __len__(self) -> int:
        return len(self._holders)

    def _trim(self, slot: int, held: _Held) -> list[int]:
        dropped = []
        while len(held.last_ms) > held.capacity_blocks:
            key, _ = held.last_ms.popitem(last=False)
            self._drop_holder(key, slot)
            dropped.append(key)
        return dropped

    def _drop_holder(self, key: int, slot: int) -> None:
        rest = self._holders[key] & ~(1 << slot)
        if rest:
            self._holders[key] = rest
        else:
            del self._holders[key]
