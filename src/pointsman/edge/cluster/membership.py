"""Membership: which engines there are, from all places that name some; starts and ends their watches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pointsman.core.model.errors import ConfigError, PointsmanError
from pointsman.edge.cluster.members import WorkerSource, same_url

CONFIGURATION, API, FILE, ETCD = "configuration", "api", "file", "etcd"
_PRECEDENCE = (CONFIGURATION, API, FILE, ETCD)
"""Of two places that name the same engine differently the first one counts."""

_log = logging.getLogger("pointsman.cluster")


class Watches(Protocol):
    """Who watches engines (the prober)."""

    def add(self, source: WorkerSource) -> None:
        """Watch one more. Raises ConfigError if its name or URL is watched already."""
        ...

    def change(self, source: WorkerSource) -> bool:
        """Something else is said of an engine that is watched; False: it has to be watched anew for that."""
        ...

    async def remove(self, name: str, reason: str = ...) -> None:
        """Watch it no more; its workers leave."""
        ...


class Draining(Protocol):
    """Who drains engines."""

    def begin(self, engine: str, reason: str) -> object:
        """No new work for it."""
        ...

    def resume(self, engine: str) -> None:
        """New work for it again."""
        ...

    def of(self, engine: str) -> object | None:
        """Its drain, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Member:
    """An engine, and which place named it."""

    origin: str
    source: WorkerSource


@dataclass(frozen=True, slots=True)
class Refused:
    """An engine that a place names, and that can't be used."""

    origin: str
    name: str
    url: str
    reason: str


class Membership:
    """The union of what all places name. Each place `offer`s all that it names, whenever that changes.

    Two of one name or one URL are the same engine; where they differ in the other, one of them is refused: the one of
    the place that comes later in configuration, api, file, etcd, in one place the later one.
    """

    def __init__(self, watches: Watches, draining: Draining) -> None:
        self._watches = watches
        self._draining = draining
        self._offered: dict[str, tuple[WorkerSource, ...]] = {}
        self._wanted: dict[str, Member] = {}
        self._watched: dict[str, WorkerSource] = {}
        self._unwatched: dict[str, str] = {}
        """Engines that are wanted and can't be watched, with the reason."""
        self._refused: tuple[Refused, ...] = ()
        self.refused_total = 0
        self._turn = asyncio.Lock()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watches what was offered so far, and from now on what changes."""
        await self._reconcile()
        self._task = asyncio.create_task(self._run(), name="membership")

    async def close(self) -> None:
        """Changes nothing any more; the watches belong to the prober."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def offer(self, origin: str, sources: Sequence[WorkerSource]) -> None:
        """What a place names from now on, all of it."""
        self._offered[origin] = tuple(sources)
        self._wanted, refused = _union(self._offered)
        for one in refused:
            if one not in self._refused:
                self.refused_total += 1
                _log.warning("%s: engine %s at %s is not used: %s", one.origin, one.name, one.url, one.reason)
        self._refused = refused
        self._woken.set()

    async def remove(self, name: str) -> bool:
        """Forgets an engine until somebody offers it anew; whether there was one. Its workers have left then."""
        known = name in self._wanted
        for origin, sources in tuple(self._offered.items()):
            if any(source.name == name for source in sources):
                self.offer(origin, [source for source in sources if source.name != name])
        await self.settled()
        return known

    async def settled(self) -> None:
        """Returns when everything that was offered before is watched, and nothing else."""
        await self._reconcile()

    def members(self) -> tuple[Member, ...]:
        """All that shall be watched, in no order that means anything."""
        return tuple(self._wanted.values())

    def member(self, name: str) -> Member | None:
        """The engine of that name."""
        return self._wanted.get(name)

    @property
    def refused(self) -> tuple[Refused, ...]:
        """What is named and not used."""
        unwatched = [(self._wanted[name], reason) for name, reason in self._unwatched.items() if name in self._wanted]
        return (
            *self._refused,
            *(Refused(one.origin, one.source.name, one.source.url, reason) for one, reason in unwatched),
        )

    def unwatched(self, name: str) -> str | None:
        """Why an engine that is wanted can't be watched; None: it is, or will be soon."""
        return self._unwatched.get(name)

    def source(self, name: str) -> WorkerSource | None:
        """What is said of an engine; of one that is about to leave, what was said last."""
        member = self._wanted.get(name)
        return self._watched.get(name) if member is None else member.source

    async def _run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self._reconcile()
            except Exception:
                _log.exception("engines could not be watched as they are named, for a reason that nobody expected")

    async def _reconcile(self) -> None:
        async with self._turn:
            for name in self._unwatched.keys() - self._wanted.keys():
                del self._unwatched[name]
            while gone := self._to_go():
                for name in gone:
                    await self._forget(name)
            # From here on nothing waits, so that nothing else is offered in between.
            for name, member in self._wanted.items():
                if self._watched.get(name) is not member.source:
                    self._watch(name, member)

    def _to_go(self) -> list[str]:
        """Engines that are not wanted any more, or have to be watched anew. Others are changed in passing."""
        gone = []
        for name, watched in self._watched.items():
            member = self._wanted.get(name)
            if member is None:
                gone.append(name)
            elif member.source is not watched:
                wanted = _watch_of(member.source)
                if wanted != _watch_of(watched) and not self._watches.change(wanted):
                    gone.append(name)
                else:
                    self._watched[name] = replace(member.source, draining=watched.draining)
        return gone

    async def _forget(self, name: str) -> None:
        self._watched.pop(name)
        member = self._wanted.get(name)
        reason = "is named nowhere any more" if member is None else f"is named otherwise by {member.origin} now"
        await self._watches.remove(name, reason)
        _log.info("%s: %s", name, reason)

    def _watch(self, name: str, member: Member) -> None:
        source, watched = member.source, self._watched.get(name)
        if watched is None:
            try:
                self._watches.add(_watch_of(source))
            except ConfigError as error:
                if self._task is None:  # at the start somebody is there to be told
                    raise
                if self._unwatched.get(name) != str(error):
                    self._unwatched[name] = str(error)
                    self.refused_total += 1
                    _log.error("%s: can't be watched: %s", name, error)
                return
            self._unwatched.pop(name, None)
            if member.origin != CONFIGURATION:
                _log.info("%s: named by %s at %s", name, member.origin, source.url)
        self._watched[name] = source
        if watched is None or watched.draining != source.draining:
            self._drain(name, source.draining)

    def _drain(self, name: str, reason: str | None) -> None:
        """An engine that comes back under its name is another one: a drain of the former is over."""
        try:
            if reason is not None:
                self._draining.begin(name, reason)
            elif self._draining.of(name) is not None:
                self._draining.resume(name)
        except PointsmanError as error:
            _log.error("%s: can't be drained or resumed as its record says: %s", name, error)


def _watch_of(source: WorkerSource) -> WorkerSource:
    """What matters for watching it: whether it drains does not."""
    return replace(source, draining=None)


def _union(offered: dict[str, tuple[WorkerSource, ...]]) -> tuple[dict[str, Member], tuple[Refused, ...]]:
    wanted: dict[str, Member] = {}
    by_url: dict[str, Member] = {}
    refused: list[Refused] = []
    for origin in sorted(offered, key=_rank):
        for source in offered[origin]:
            url = same_url(source.url)
            same_name, same_place = wanted.get(source.name), by_url.get(url)
            if same_name is None and same_place is None:
                wanted[source.name] = by_url[url] = Member(origin, source)
            elif same_name is None and same_place is not None:
                reason = f"{same_place.source.name} of {same_place.origin} has this URL too"
                refused.append(Refused(origin, source.name, source.url, reason))
            elif same_name is not None and same_place is not same_name:
                reason = f"{same_name.origin} names {same_name.source.url} so; choose another name"
                refused.append(Refused(origin, source.name, source.url, reason))
            elif same_name is not None and source.draining is not None and same_name.source.draining is None:
                # Whoever named it first: it said itself that it goes.
                drains = Member(same_name.origin, replace(same_name.source, draining=source.draining))
                wanted[source.name] = by_url[url] = drains
    return wanted, tuple(refused)


def _rank(origin: str) -> tuple[int, str]:
    return (_PRECEDENCE.index(origin) if origin in _PRECEDENCE else len(_PRECEDENCE), origin)
