"""LinkFeed: measured links on their way to the ledger, from the file at the start and from the admin port."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from pointsman.core.ledger.events import Event, LinkMeasured
from pointsman.edge.configuration.links_file import SavedLink
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.tasks import OwnedTasks

SLICE = 32
"""Measurements that are told in one turn of the event loop; what is learned of them takes some 5 ms."""

_MOST_NAMED = 8

_log = logging.getLogger("pointsman.serving")


class LinkFeed:
    """A large fleet's links are thousands of measurements: those go to the ledger bit by bit, beside requests."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        learn: Callable[[], object],
        clock: Clock,
        machines: Callable[[], Mapping[str, str]] = dict,
        look_s: float = 60.0,
    ) -> None:
        """`learn` is called after each slice, and has what was told worked in.

        `machines`: on which machine each worker is. So long after a file is told, engines should have been found.
        """
        self._machines = machines
        self._look_s = look_s
        self._file: tuple[SavedLink, ...] = ()
        self._emit = emit
        self._learn = learn
        self._clock = clock
        self._tasks = OwnedTasks()

    def tell(self, links: Sequence[SavedLink], whence: str) -> int:
        """All samples of all links and round trips, the first slice at once; how many. `whence` is for the log."""
        count = sum(len(link.samples) + (link.round_trip_ms > 0) for link in links)
        events = self._events(links)
        if count:
            _log.info("links of %s: %d measurements of %d directions", whence, count, len(links))
            self._slice(events)
        if count > SLICE:
            self._tasks.start(self._rest(events), "links")
        return count

    def tell_file(self, links: tuple[SavedLink, ...]) -> None:
        """All that the file says; a little later the log says which machines of it have no engines."""
        self._file = links
        if self.tell(links, "the file"):
            self._tasks.start(self._look_at(links), "links of the file")

    def is_new(self, links: tuple[SavedLink, ...]) -> bool:
        """Whether the file says something else than what was told of it last."""
        return links != self._file

    def without_engines(self, links: Sequence[SavedLink]) -> list[str]:
        """Machines that measurements name and on which no engine is: nothing will ever move there."""
        return sorted({end for link in links for end in (link.source, link.target)} - set(self._machines().values()))

    def with_engines(self) -> list[str]:
        """Machines on which engines are."""
        return sorted(set(self._machines().values()))

    async def _look_at(self, links: Sequence[SavedLink]) -> None:
        await asyncio.sleep(self._look_s)
        self.warn(self.without_engines(links), "links.file")

    def warn(self, strange: Sequence[str], whence: str) -> None:
        """One line, if there are any."""
        if strange:
            _log.warning(
                "%s names %d machines that have no engines here (%s), so nothing uses what it says of them; engines "
                "are on: %s. Measure with the names that engines' machines have (`doctor links --node NAME=URL`)",
                whence,
                len(strange),
                few(strange),
                few(self.with_engines()) or "none yet",
            )

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


def few(names: Sequence[str]) -> str:
    """The first of them, for a line."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
