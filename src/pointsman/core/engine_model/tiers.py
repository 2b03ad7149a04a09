"""Tiers below the GPU, as capacities: what is evicted above goes down, and can be loaded again.

A block that is loaded stays below as well, so that its next eviction costs nothing. That is how offloading connectors
of engines do it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

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
        """Blocks that the GPU gave up, oldest first; what changed in the tiers."""
        events: list[KvEvent] = []
        coming = list(evicted)
        for config, held in zip(self._configs, self._held, strict=True):
            stored = []
            for key in coming:
                if key in held:
                    held.move_to_end(key)
                else:
                    held[key] = None
                    stored.append(key)
            coming = [held.popitem(last=False)[0] for _ in range(len(held) - config.blocks)]
            if stored:
                events.append(BlockStored(tuple(stored), None, (), 0, medium=config.name))
            if not coming:
                break
            events.append(BlockRemoved(tuple(coming), medium=config.name))
        return events

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
