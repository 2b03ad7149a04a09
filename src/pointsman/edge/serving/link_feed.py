"""LinkFeed: measured links on their way to the ledger, from the file at the start and from the admin port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from pointsman.core.ledger.events import Event, LinkMeasured
from pointsman.edge.configuration.links_file import SavedLink
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.tasks import OwnedTasks

SLICE = 32
"""Measurements that are told in one turn of the event loop; what is learned of them takes some 5 ms."""

_log = logging.getLogger("pointsman.serving")


class LinkFeed:
    """A large fleet's links are thousands of measurements: those go to the ledger bit by bit, beside requests."""

    def __init__(self, emit: Callable[[Event], None], learn: Callable[[], object], clock: Clock) -> None:
        """`learn` is called after each slice, and has what was told worked in."""
        self._emit = emit
        self._learn = learn
        self._clock = clock
        self._tasks = OwnedTasks()

    def tell(self, links: Sequence[SavedLink], whence: str) -> int:
        """All samples of all links and their round trips, the first slice at once; how many. `whence` is for the log."""
        count = sum(len(link.samples) + (link.round_trip_ms > 0) for link in links)
        events = self._events(links)
        if count:
            _log.info("links of %s: %d measurements of %d directions", whence, count, len(links))
            self._slice(events)
        if count > SLICE:
            self._tasks.start(self._rest(events), "links")
        return count

    async def close(self) -> None:
        """What was not told yet is forgotten."""
        await self._tasks.close()

    async def _rest(self, events: Iterator[LinkMeasured]) -> None:
        more = True
        while more:
            await asyncio.sleep(0.01)
            more = self._slice(events)

    def _slice(self, events: Iterator[LinkMeasured]) -> bool:
        told = 0
        for event in islice(events, SLICE):
            self._emit(event)
            told += 1
        self._learn()
        return told == SLICE

    def _events(self, links: Sequence[SavedLink]) -> Iterator[LinkMeasured]:
        for link in links:
            if link.round_trip_ms > 0:  # the smallest transfer that there is, which shows the floor best
                yield LinkMeasured(link.source, link.target, self._clock(), 1, link.round_trip_ms)
            for sample in link.samples:
                yield LinkMeasured(link.source, link.target, self._clock(), sample.size_bytes, sample.took_ms)
