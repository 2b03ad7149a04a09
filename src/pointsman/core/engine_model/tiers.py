"""Tiers below the GPU, as capacities: what is evicted above goes down, and can be loaded again.

A block that is loaded stays below as well, so that its next eviction costs nothing. That is how offloading connectors
of engines do it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from pointsman.core.engine_model.config import TierConfig
from pointsman.core.engine_model.events import BlockRemoved, BlockStored, KvEvent


class Tiers:
    """Hashes in each tier, least recently used first."""

    __slots__ = ("_configs", "_held")

    def __init__(self, configs: Sequence[TierConfig]) -> None:
        self._configs = tuple(configs)
        self._held: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in configs)

    def hashes(self) -> dict[str, list[int]]:
        """What each tier holds, by name."""
        return {config.name: list(held) for config, held in zip(self._configs, self._held, strict=True)}

    def put(self, evicted: Iterable[int]) -> list[KvEvent]:
        """Blocks that the GPU gave up, oldest first, one after the other; what changed in the tiers."""
        changes: list[tuple[str, bool, int]] = []
        for key in evicted:
            self._put(key, changes)
        events: list[KvEvent] = []
        for (medium, stored), group in groupby(changes, key=lambda change: change[:2]):
            hashes = tuple(change[2] for change in group)
            events.append(
                BlockStored(hashes, None, (), 0, medium=medium) if stored else BlockRemoved(hashes, medium=medium)
            )
        return events

    def _put(self, key: int, changes: list[tuple[str, bool, int]]) -> None:
        for config, held in zip(self._configs, self._held, strict=True):
            if key in held:
                held.move_to_end(key)
                return
            held[key] = None
            changes.append((config.name, True, key))
            if len(held) <= config.blocks:
                return
            key, _nothing = held.popitem(last=False)
            changes.append((config.name, False, key))

    def lookup(self, hashes: Sequence[int], first: int, limit: int) -> int:
        """How many blocks from number `first` on are in some tier, up to number `limit` (exclusive)."""
        found = 0
        for key in islice(hashes, first, limit):
            if not any(key in held for held in self._held):
                break
            found += 1
        return found

    def load_ms(self, hashes: Iterable[int]) -> float:
        """Time to copy blocks that `lookup` found to the GPU; they count as used just now."""
        counts = [0] * len(self._held)
        for key in hashes:
            for number, held in enumerate(self._held):
                if key in held:
                    held.move_to_end(key)
                    counts[number] += 1
                    break
        return sum(
            config.floor_ms + count * config.load_ms_per_block
            for config, count in zip(self._configs, counts, strict=True)
            if count
        )

    def clear(self) -> None:
        """Forget everything."""
        for held in self._held:
            held.clear()
