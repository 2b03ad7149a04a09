"""StepTimes: step times of the fleet's workers, learned from the requests that the ledger hears of.

Workers of one class (same profile, or same kind of engine, model, GPUs and role) learn together, and classes that
differ by the role alone lend each other what one of them never computed. A class with a profile begins with the
profile's times; one without begins when its first intervals came, with the usual proportions of an engine at the speed
that they show. Everything is done with the tick and bounded: so many events and intervals a second.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain

from pointsman.core.ledger.entries import Flight, WorkerEntry
from pointsman.core.ledger.snapshot import TimesSnapshot
from pointsman.core.ledger.watch import InFlight, Watch
from pointsman.core.model.worker import Role, WorkerSpec
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.observer import ObservedLoad
from pointsman.core.timing.online import LearnedTimes
from pointsman.core.timing.prediction import Load
from pointsman.core.timing.profiles import profile
from pointsman.core.timing.step import StepCoefficients

_EVENTS_A_TICK = 2_048
"""Of all workers together. In a fleet where that is too few for each, some are looked at with each tick, in turn."""
_IN_TURN_EVENTS = 1_024
"""Of those looked at in turn."""
_LEAST_EVENTS = 64
"""Of one worker."""
_WORKERS_A_TICK = 256
"""That are looked at."""
_TOLD_A_TICK = 256
"""Workers: of more than that policies are told anew what was learned with every second tick, and so on."""
_SETTLED = 60.0
"""Intervals after which a class learns from fewer."""
_YOUNG_INTERVALS, _SETTLED_INTERVALS, _MOST_INTERVALS = 16, 2, 32
"""Of a class a tick; settled classes of many workers learn from one for four workers, up to the last."""
_FIRST_INTERVALS = 3
_MOST_FOREIGN = 3.0
"""Sequences of others for one of ours above which intervals say nothing."""
_FOREIGN_WEIGHT = 0.25
_USUAL = profile("h100/llama-8b").step


class StepTimes:
    """Owned by the ledger. `priors`: step times by the names of profiles that workers have."""

    def __init__(self, priors: Mapping[str, StepCoefficients]) -> None:
        self._priors = dict(priors)
        self._learned = LearnedTimes({})
        self._first: dict[str, list[tuple[str, Interval]]] = {}
        """Of classes that nothing is known of yet."""
        self._timing = FleetTimes({})
        self._next = 0
        """Where the tick goes on among the workers."""
        self._not_told = 0
        """Ticks since policies were told what was learned; 0: they know all of it."""

    @property
    def timing(self) -> FleetTimes:
        """As of the last ticks, of workers of which something is known. Never changed: a new one takes its place."""
        return self._timing

    def know_profile(self, name: str, step: StepCoefficients) -> None:
        """Workers that join from now on may have this profile."""
        self._priors[name] = step

    # ---- workers

    def joined(self, entry: WorkerEntry) -> None:
        """A worker, or a new incarnation of one."""
        entry.watch = Watch()
        entry.worker_class = self._class_of(entry.spec)
        if self._learned.knows(entry.worker_class):
            self._learned.joined(entry.id, entry.worker_class)
            self._tell(entry.id)

    def changed(self, entry: WorkerEntry, at_ms: float) -> None:
        """What it tells of itself changed; another adapter does not make it another class."""
        name = class_name(entry.spec)
        if name != entry.worker_class:
            known = self._learned.times(entry.id)
            if known is not None and not self._learned.knows(name):
                self._learned.believe(name, known.step)  # it is the same engine still
            self.left(entry)
            self.joined(entry)
            if entry.watch is not None:
                entry.watch.begin_anew(at_ms, _in_flight(entry.flights.values()))

    def left(self, entry: WorkerEntry) -> None:
        """It is gone."""
        entry.watch = None
        self._learned.left(entry.id)
        first = self._first.get(entry.worker_class)
        if first is not None:
            # Learned from later they would make it a member of its class for ever.
            self._first[entry.worker_class] = [one for one in first if one[0] != entry.id]
        if entry.id in self._timing:
            self._timing = FleetTimes({worker: times for worker, times in self._timing.items() if worker != entry.id})

    def _class_of(self, spec: WorkerSpec) -> str:
        name = class_name(spec)
        prior = self._priors.get(spec.profile) if spec.profile is not None else None
        if prior is not None:
            self._learned.believe(name, prior)
        self._learned.relate(name, class_name(replace(spec, role=Role.BOTH)))
        return name

    # ---- learning

    def ticked(self, entries: Collection[WorkerEntry], foreign: Callable[[WorkerEntry], int], at_ms: float) -> None:
        """Look at what happened since the last tick and learn from it. `foreign`: a worker's sequences of others."""
        limit = max(_LEAST_EVENTS, _EVENTS_A_TICK // max(1, len(entries)))
        found: dict[str, list[tuple[str, Interval]]] = {}
        began = self._next
        for entry in self._in_turn(entries, limit):
            intervals = self._replayed(entry, limit, at_ms)
            if intervals:
                ours = sum(flight.sequences for flight in entry.flights.values())
                usable = _with_foreign(intervals, ours, foreign(entry))
                found.setdefault(entry.worker_class, []).extend((entry.id, one) for one in usable)
        sizes = Counter(entry.worker_class for entry in entries) if found else {}
        for name, intervals_of in found.items():
            self._learn(name, intervals_of, sizes[name], entries)
        if any(self._learned.intervals(name) < _SETTLED for name in found):
            self._next = began  # a young class learns sooner from the same few workers again
        self._tell_all(entries, learned=bool(found))

    def _in_turn(self, entries: Collection[WorkerEntry], limit: int) -> Iterable[WorkerEntry]:
        """Those that the tick can look at, from where the last one stopped."""
        everyone = list(entries)
        begin = self._next if self._next < len(everyone) else 0
        events, most = 0, _EVENTS_A_TICK if limit > _LEAST_EVENTS else _IN_TURN_EVENTS
        for number, entry in enumerate(chain(everyone[begin:], everyone[:begin])):
            if number >= _WORKERS_A_TICK or events >= most:
                break
            self._next = (begin + number + 1) % len(everyone)
            events += 0 if entry.watch is None else min(limit, entry.watch.kept)
            yield entry

    def _tell_all(self, entries: Collection[WorkerEntry], *, learned: bool) -> None:
        self._not_told += bool(learned or self._not_told)
        if self._not_told > len(entries) // _TOLD_A_TICK:
            self._not_told = 0
            times = ((entry.id, self._learned.times(entry.id)) for entry in entries)
            self._timing = FleetTimes({worker: known for worker, known in times if known is not None})

    def _replayed(self, entry: WorkerEntry, limit: int, at_ms: float) -> list[Interval]:
        watch = entry.watch
        if watch is None:
            return []
        worker = entry.id

        def predict(load: ObservedLoad, new_tokens: int, cached_tokens: int) -> float | None:
            return self._learned.predict_ttft_ms(worker, _load(load), new_tokens, cached_tokens)

        def judge(predicted_ms: float, actual_ms: float) -> None:
            self._learned.observe_first_token(worker, predicted_ms, actual_ms)

        return watch.replay(limit, at_ms, lambda: _in_flight(entry.flights.values()), predict, judge)

    def _learn(
        self, name: str, found: list[tuple[str, Interval]], workers: int, entries: Collection[WorkerEntry]
    ) -> None:
        if not self._learned.knows(name):
            first = self._first.setdefault(name, [])
            first.extend(found)
            if len(first) < _FIRST_INTERVALS:
                return
            ratios = [one.elapsed_ms / one.predicted_ms(_USUAL) for _, one in first]
            self._learned.believe(name, _USUAL.scaled(statistics.median(ratios)))
            for entry in entries:
                if entry.worker_class == name:
                    self._learned.joined(entry.id, name)
            found = self._first.pop(name)
        settled = self._learned.intervals(name) >= _SETTLED
        most = min(_MOST_INTERVALS, max(_SETTLED_INTERVALS, workers // 4)) if settled else _YOUNG_INTERVALS
        for worker, interval in _spread(found, most):
            self._learned.observe(worker, name, interval)

    def _tell(self, worker: str) -> None:
        times = self._learned.times(worker)
        if times is not None:
            self._timing = FleetTimes({**self._timing, worker: times})

    def factor(self, worker: str) -> float:
        """How many times as long as its class a worker takes; 1 where nothing is known."""
        return self._learned.factor(worker)

    # ---- to show

    def snapshot(self, entry: WorkerEntry) -> TimesSnapshot | None:
        """What is known of a worker; None while nothing is."""
        worker = entry.id
        step = self._learned.times(worker)
        error, ttft = self._learned.error(worker), self._learned.ttft_error(worker)
        if step is None or error is None or ttft is None:
            return None
        return TimesSnapshot(
            worker_class=entry.worker_class,
            step=step.step,
            factor=self._learned.factor(worker),
            overhead_ms=step.overhead_ms,
            intervals=self._learned.intervals(entry.worker_class),
            step_error=error,
            ttft_error=ttft,
        )


def class_name(spec: WorkerSpec) -> str:
    """Workers with equal names should be equally fast."""
    role = "" if spec.role is Role.BOTH else f" {spec.role}"
    if spec.profile is not None:
        return spec.profile + role
    model = spec.models[0] if spec.models else "no model"
    gpus = "" if spec.gpu_count == 1 else f" x{spec.gpu_count}"
    return f"{spec.kind} {model}{gpus}{role}"


def _spread(found: list[tuple[str, Interval]], most: int) -> list[tuple[str, Interval]]:
    """So many of them, evenly over workers and time."""
    if len(found) <= most:
        return found
    return [found[(2 * i + 1) * len(found) // (2 * most)] for i in range(most)]


def _with_foreign(intervals: list[Interval], ours: int, foreign: int) -> list[Interval]:
    """Others' requests are taken to be like ours; where there are many of them, nothing is learned."""
    if not foreign:
        return intervals
    if foreign > _MOST_FOREIGN * max(1, ours):
        return []
    more = 1 + foreign / max(1, ours)
    return [
        replace(
            one,
            sequence_steps=one.sequence_steps * more,
            context_token_steps=one.context_token_steps * more,
            prefill_tokens=one.prefill_tokens * more,
            prefill_squares=one.prefill_squares * more,
            weight=one.weight * _FOREIGN_WEIGHT,
        )
        for one in intervals
        if one.sequence_steps
    ]


def _load(observed: ObservedLoad) -> Load:
    return Load(observed.sequences, observed.context_tokens, observed.waiting_prefill_tokens, observed.waiting)


def _in_flight(flights: Iterable[Flight]) -> Iterable[InFlight]:
    for flight in flights:
        if flight.unwatched:
            continue  # its time to teach comes yet
        generated = max(0, flight.kv_tokens - flight.request.prompt_tokens)
        yield flight.request, flight.cached_tokens, generated, flight.started
