"""Joining: an engine that registers once it is ready, and takes its leave so that no request fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from pointsman.edge.cluster.join.joiner import Joiner

_log = logging.getLogger("pointsman.cluster")

_POLL_S = 0.05
_TOLD_S = 3.0
"""What telling everybody may take."""
_LAG_S = 0.5
"""Who was told may have requests on their way."""


class Leaves(Protocol):
    """An engine that can be taken out of service."""

    def unready(self) -> None:
        """`/health` says 503 from now on."""
        ...

    def refuse(self) -> None:
        """New work is refused with 503 from now on; what runs goes on."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that run."""
        ...


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """What an engine says of itself."""

    name: str
    url: str
    """Where front ends reach it."""
    more: dict[str, object]
    """Further keys of `execution-group.nodes`."""

    def encoded(self, draining: str | None = None) -> bytes:
        """As JSON."""
        record = {"name": self.name, "url": self.url, **self.more}
        return msgspec.json.encode(record if draining is None else {**record, "draining": draining})


class Joining:
    """`run` while the engine serves, then `leave`. `hurry` ends the waiting of `leave`."""

    def __init__(self, engine: Leaves, record: JoinRecord, joiners: Sequence[Joiner], *, lag_s: float = _LAG_S) -> None:
        self._engine = engine
        self._record = record
        self._joiners = tuple(joiners)
        self._lag_s = lag_s
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving = False
        self._hurried = asyncio.Event()

    async def run(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Registers once the engine is ready, until cancelled."""
        while not await ready():
            await asyncio.sleep(_POLL_S)
            if self._leaving:
                return
        self._tasks = [asyncio.create_task(joiner.run(), name="join") for joiner in self._joiners]
        await asyncio.gather(*self._tasks)

    async def leave(self, grace_s: float, reason: str) -> None:
        """Unready at once, no new work, then wait for what runs, at most `grace_s`; take the record away."""
        self._leaving = True
        self._engine.unready()
        if self._tasks:  # else nobody heard of it
            drains = self._record.encoded(draining=reason)
            await self._all([joiner.say(drains) for joiner in self._joiners])
            await self._wait(self._lag_s)
        self._engine.refuse()
        left = self._engine.in_flight
        if left:
            _log.info("%s: %d requests run, they get %g s", reason, left, grace_s)
        deadline_s = asyncio.get_running_loop().time() + grace_s
        while self._engine.in_flight and not self._hurried.is_set() and asyncio.get_running_loop().time() < deadline_s:
            await self._wait(_POLL_S)
        if self._engine.in_flight:
            _log.warning("%d requests are cut", self._engine.in_flight)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            await self._all([joiner.leave() for joiner in self._joiners])

    def hurry(self) -> None:
        """Wait no longer."""
        self._hurried.set()

    async def _wait(self, duration_s: float) -> None:
        try:
            async with asyncio.timeout(duration_s):
                await self._hurried.wait()
        except TimeoutError:
            return

    async def _all(self, work: Sequence[Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(_TOLD_S):
                await asyncio.gather(*work)
        except TimeoutError:
            _log.warning("not everybody could be told within %g s", _TOLD_S)
