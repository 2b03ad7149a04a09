"""Drains: engines that get no new work, until what runs there has ended, moved on or was cut.

A drain goes on whatever probes say meanwhile, and also holds for the engine's next process: only `resume` or the
engine's removal ends it.
"""

from __future__ import annotations

import enum
import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from pointsman.core.ledger.events import WorkerDraining, WorkerEvent, WorkerResumed
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.worker import WorkerId, WorkerSpec, engine_of
from pointsman.edge.serving.clock import Clock

_log = logging.getLogger("pointsman.serving")

SAID_EVERY_MS = 60_000.0


class UnknownEngineError(PointsmanError):
    """Nobody knows an engine of that name."""


class Movers(Protocol):
    """Who can end what runs at a worker (the dispatcher)."""

    def migrate_from(self, worker: WorkerId, reason: str) -> int:
        """Ask every request there to go on elsewhere; how many will."""

    def cut(self, worker: WorkerId, reason: str) -> int:
        """End every request there with an error that its client understands; how many were there."""


class Phase(enum.StrEnum):
    """How far a drain has come."""

    FINISHING = "finishing"
    """No new work; what runs there ends by itself."""
    MIGRATING = "migrating"
    """The grace is over: what still runs there was asked to go on elsewhere."""
    CUT = "cut"
    """What could not go on elsewhere was ended."""
    DRAINED = "drained"
    """Nothing is there any more; the engine may go."""


@dataclass(slots=True)
class Drain:
    """One engine's drain. Times in ms of the front end's clock."""

    engine: str
    reason: str
    began_ms: float
    migrates_ms: float
    phase: Phase = Phase.FINISHING
    cuts_ms: float = float("inf")
    said_ms: float = 0.0
    then: list[Callable[[], None]] = field(default_factory=list)
    """To be called once it is drained."""


class Drains:
    """All drains of a front end. `look` moves them on; call it every second or so.

    Args:
        emit: takes ledger events.
        engines: names of the engines that there are, also of those that never answered.
        grace_s: what requests get before they are asked to go on elsewhere, unless `begin` says otherwise.
        cut_after_s: what moving may take before the rest is cut.
    """

    def __init__(
        self,
        ledger: Ledger,
        emit: Callable[[WorkerEvent], None],
        movers: Movers,
        engines: Callable[[], Collection[str]],
        now_ms: Clock,
        *,
        grace_s: float = 600.0,
        cut_after_s: float = 30.0,
    ) -> None:
        self._ledger = ledger
        self._emit = emit
        self._movers = movers
        self._engines = engines
        self._now_ms = now_ms
        self.grace_s = grace_s
        self.cut_after_s = cut_after_s
        self._drains: dict[str, Drain] = {}
        self.requests: Counter[str] = Counter()
        """Requests that did not end by themselves, by what became of them: migrated, cut."""

    def begin(
        self, engine: str, reason: str, grace_s: float | None = None, *, then: Callable[[], None] | None = None
    ) -> Drain:
        """No new work for an engine from now on. Asked again it takes the new reason and the earlier end.

        `then` is called once nothing is there any more, at once if nothing is. Raises UnknownEngineError.
        """
        now_ms = self._now_ms()
        migrates_ms = now_ms + 1000 * (self.grace_s if grace_s is None else grace_s)
        drain = self._drains.get(engine)
        if drain is None:
            self._check(engine)
            drain = self._drains[engine] = Drain(engine, reason, now_ms, migrates_ms, said_ms=now_ms)
        else:
            drain.reason, drain.migrates_ms = reason, min(drain.migrates_ms, migrates_ms)
        if then is not None:
            drain.then.append(then)
        for worker in self._ledger.at_engine(engine):
            self._emit(WorkerDraining(worker, now_ms, reason))
        _log.info("%s: drains (%s): %d requests there, no new ones", engine, reason, self.in_flight(engine))
        self._move(drain, now_ms)
        return drain

    def resume(self, engine: str) -> None:
        """New work for it again, as far as its health allows. Raises UnknownEngineError; else nothing to do is fine."""
        drain = self._drains.pop(engine, None)
        if drain is None:
            self._check(engine)
            return
        now_ms = self._now_ms()
        for worker in self._ledger.at_engine(engine):
            self._emit(WorkerResumed(worker, now_ms))
        _log.info("%s: drains no more, it gets requests again", engine)

    def joined(self, spec: WorkerSpec) -> None:
        """A worker joined: where its engine drains it gets nothing. Call it right after the ledger heard of it."""
        drain = self._drains.get(engine_of(spec.id))
        if drain is not None:
            self._emit(WorkerDraining(spec.id, self._now_ms(), drain.reason))

    def look(self) -> None:
        """Move on what is due, and forget engines that are gone."""
        if not self._drains:
            return
        now_ms = self._now_ms()
        known = set(self._engines())
        for drain in tuple(self._drains.values()):
            if drain.engine in known:
                self._move(drain, now_ms)
            elif not self._ledger.at_engine(drain.engine):
                del self._drains[drain.engine]
                _log.info("%s: is gone, its drain is over", drain.engine)
                self._call(drain)

    def all(self) -> tuple[Drain, ...]:
        """Those that run, drained ones included until their engines are gone or resumed."""
        return tuple(self._drains.values())

    def of(self, engine: str) -> Drain | None:
        """The drain of an engine, if there is one."""
        return self._drains.get(engine)

    def in_flight(self, engine: str) -> int:
        """Requests at an engine."""
        return sum(self._ledger.at_engine(engine).values())

    def _check(self, engine: str) -> None:
        known = sorted(self._engines())
        if engine not in known:
            raise UnknownEngineError(f"no engine is called {engine!r}; there are {', '.join(known) or 'none'}")

    def _move(self, drain: Drain, now_ms: float) -> None:
        left = self.in_flight(drain.engine)
        if not left:
            self._drained(drain, now_ms)
            return
        if drain.phase is Phase.DRAINED:  # another front end's word, or a request that was pinned there
            drain.phase = Phase.FINISHING
        if drain.phase is Phase.FINISHING and now_ms >= drain.migrates_ms:
            drain.phase, drain.cuts_ms = Phase.MIGRATING, now_ms + 1000 * self.cut_after_s
            moved = self._migrate(drain)
            _log.warning(
                "%s: drains (%s): the grace is over with %d requests there; %d go on elsewhere, the rest has %g s",
                drain.engine,
                drain.reason,
                left,
                moved,
                self.cut_after_s,
            )
        elif drain.phase is not Phase.FINISHING and now_ms >= drain.cuts_ms:
            drain.phase, drain.cuts_ms = Phase.CUT, now_ms + 1000 * self.cut_after_s
            cut = self._each(drain, self._movers.cut)
            self.requests["cut"] += cut
            _log.warning("%s: drains (%s): %d requests could not move and were cut", drain.engine, drain.reason, cut)
        elif drain.phase is Phase.MIGRATING and (moved := self._migrate(drain)):
            _log.info("%s: drains (%s): %d more requests go on elsewhere", drain.engine, drain.reason, moved)
        elif now_ms >= drain.said_ms + SAID_EVERY_MS:
            drain.said_ms = now_ms
            _log.info("%s: drains (%s): %d requests are still there", drain.engine, drain.reason, left)

    def _migrate(self, drain: Drain) -> int:
        """Asked again at each look: another engine may be usable by now."""
        moved = self._each(drain, self._movers.migrate_from)
        self.requests["migrated"] += moved
        return moved

    def _each(self, drain: Drain, act: Callable[[WorkerId, str], int]) -> int:
        workers = [worker for worker, count in self._ledger.at_engine(drain.engine).items() if count]
        return sum(act(worker, f"its engine drains: {drain.reason}") for worker in workers)

    def _drained(self, drain: Drain, now_ms: float) -> None:
        if drain.phase is not Phase.DRAINED:
            drain.phase = Phase.DRAINED
            _log.info("%s: drained after %.1f s (%s)", drain.engine, (now_ms - drain.began_ms) / 1000, drain.reason)
        self._call(drain)

    def _call(self, drain: Drain) -> None:
        waiting, drain.then = drain.then, []
        for act in waiting:
            act()
