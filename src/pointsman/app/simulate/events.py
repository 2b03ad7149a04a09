"""EventHeap: what happens when, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any, TypeVar

Argument = TypeVar("Argument")


class Rank:
    """What comes first among the events of one moment."""

    FLEET, STEP, KV, METRICS, ARRIVAL = range(5)


class EventHeap:
    """Handlers with the time at which they are due. Raises ValueError for a time before now.

    What is due at the same time runs by rank (0 first), then in the order in which it was pushed. With `ties` it runs
    in random order: no result may depend on it.
    """

    def __init__(self, now_ms: float, ties: random.Random | None = None) -> None:
        self.now_ms = now_ms
        self._heap: list[tuple[float, float, int, Callable[[Any], None], Any]] = []
        self._ties = ties
        self._pushed = 0

    def push(self, at_ms: float, rank: int, handler: Callable[[Argument], None], argument: Argument) -> None:
        """Call `handler(argument)` at that time."""
        if not at_ms >= self.now_ms:
            raise ValueError(f"an event at {at_ms} ms is before now ({self.now_ms} ms)")
        self._pushed += 1
        order = rank if self._ties is None else self._ties.random()
        heapq.heappush(self._heap, (at_ms, order, self._pushed, handler, argument))

    def run_next(self) -> None:
        """Move time on to the next event and run it. Raises IndexError when there is none."""
        self.now_ms, _, _, handler, argument = heapq.heappop(self._heap)
        handler(argument)

    def __len__(self) -> int:
        return len(self._heap)
