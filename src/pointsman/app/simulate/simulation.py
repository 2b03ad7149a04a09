"""Simulation: the fleet, the front end and the requests on their way, as handlers of events in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from pointsman.app.simulate.arrivals import Arrivals
from pointsman.app.simulate.events import EventHeap
from pointsman.app.simulate.flight import Flight
from pointsman.app.simulate.front_end import FrontEnd, OnDecision
from pointsman.app.simulate.intervals import IntervalCounter
from pointsman.app.simulate.outcome import Outcome, Status
from pointsman.app.simulate.prompts import Prompts, models_of
from pointsman.app.simulate.records import Records
from pointsman.app.simulate.setup import Setup
from pointsman.app.simulate.telemetry import Telemetry
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.ledger import events as ev
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.policy import Policy
from pointsman.core.workload.trace import Trace

MAX_ATTEMPTS = 3
"""Workers that are tried before a request fails because none could be reached; the live front end's figure."""
OnProgress = Callable[[int, int], None]
"""Called now and then with the requests that ended, and all."""


class Rank:
    """What comes first among the events of one moment."""

    FLEET, STEP, KV, METRICS, ARRIVAL = range(5)


class Simulation:
    """Handlers of events. Whatever they tell the ledger, the live path tells it at the same moment."""

    def __init__(
        self,
        trace: Trace,
        setup: Setup,
        policy: Policy,
        *,
        seed: int = 0,
        policy_seed: int | None = None,
        shuffle_ties: bool = False,
        clients: int | None = None,
        on_decision: OnDecision | None = None,
    ) -> None:
        self._trace = trace
        self._setup = setup
        self._arrivals = Arrivals(trace, clients=clients, recorded_times=setup.recorded_times)
        self._start_ms = self._arrivals.start_ms
        self._heap = EventHeap(self._start_ms, random.Random(f"ties {seed}") if shuffle_ties else None)
        self._noise = random.Random(f"noise {seed}") if setup.step_noise else None
        self._prompts = Prompts(trace, setup)
        self.block_tokens = self._prompts.block_tokens
        self._workers = _workers(trace, setup, self.block_tokens)
        self._by_id: dict[WorkerId, ModelledWorker] = {worker.id: worker for worker in self._workers}
        timing = {worker.id: worker.group.profile.step for worker in self._workers}
        chance = seed if policy_seed is None else policy_seed
        self._front_end = FrontEnd(policy, self.block_tokens, setup.prefix_ttl_ms, timing, chance, on_decision)
        self.ledger = self._front_end.ledger
        self._telemetry = Telemetry(self.ledger, setup, self._prompts.spec)
        self._records = Records(trace)
        self._itl = IntervalCounter()
        self._last_end_ms = self._start_ms

    def run(self, on_progress: OnProgress | None = None) -> Outcome:
        """Everything, to the end of the last request."""
        self._open()
        heap, records, total = self._heap, self._records, len(self._trace)
        every = max(1, total // 200)
        report_at = every if on_progress is not None else math.inf
        while records.ended < total:
            if not heap.run_next():
                raise RuntimeError(f"{total - records.ended} requests never ended")
            if records.ended >= report_at:
                report_at = records.ended + every
                if on_progress is not None:
                    on_progress(records.ended, total)
        for worker in self._workers:
            worker.close(self._last_end_ms)
        totals = [worker.totals() for worker in self._workers]
        return records.outcome(self._itl.histogram(), totals, self._start_ms, self._last_end_ms)

    def _open(self) -> None:
        push, setup = self._heap.push, self._setup
        for worker in self._workers:
            if worker.group.started_ms is None:
                worker.occupy(self._start_ms)
                self._join(worker)
            else:
                self._starts(worker, worker.group.started_ms)
        for failure in setup.failures:
            worker = self._workers[failure.worker]
            push(max(self._start_ms, failure.at_ms), Rank.FLEET, self._die, worker)
            if failure.back_after_ms is not None:
                self._starts(worker, failure.at_ms + failure.back_after_ms)
        for drain in setup.drains:
            push(max(self._start_ms, drain.at_ms), Rank.FLEET, self._drain, self._workers[drain.worker])
        for number, worker in enumerate(self._workers, 1):
            first_ms = self._start_ms + self._telemetry.every_ms * number / len(self._workers)
            push(first_ms, Rank.METRICS, self._read, worker)
        for at_ms, position in self._arrivals.first():
            self._comes(at_ms, position)

    # ---- the fleet

    def _starts(self, worker: ModelledWorker, at_ms: float) -> None:
        self._heap.push(max(self._start_ms, at_ms), Rank.FLEET, self._occupy, worker)
        self._heap.push(max(self._start_ms, at_ms + self._setup.startup_ms), Rank.FLEET, self._join, worker)

    def _occupy(self, worker: ModelledWorker) -> None:
        worker.occupy(self._heap.now_ms)

    def _join(self, worker: ModelledWorker) -> None:
        if not worker.alive:
            worker.start()
            self._telemetry.joined(worker, self._heap.now_ms)

    def _die(self, worker: ModelledWorker) -> None:
        if not worker.alive:
            return
        now_ms = self._heap.now_ms
        for flight in worker.die(now_ms):
            flight.sequence = None
            if flight.started or not flight.retries:
                # An accepted request is never sent twice: it may have been the one that killed the engine.
                self.ledger.apply(ev.Failed(flight.request.id, now_ms, f"{worker.id} broke off"))
                self._end(flight, Status.FAILED)
            else:
                flight.retries -= 1
                self.ledger.apply(ev.AttemptFailed(flight.request.id, now_ms, f"{worker.id} broke off", True))
                self._send(flight, {worker.id})

    def _drain(self, worker: ModelledWorker) -> None:
        if worker.alive:
            self.ledger.apply(ev.WorkerDraining(worker.id, self._heap.now_ms, "drained by the setup"))

    def _read(self, worker: ModelledWorker) -> None:
        self._telemetry.read(worker, self._heap.now_ms)
        self._heap.push(self._heap.now_ms + self._telemetry.every_ms, Rank.METRICS, self._read, worker)

    # ---- requests

    def _comes(self, at_ms: float, position: int) -> None:
        self._heap.push(at_ms + self._setup.front_end_ms, Rank.ARRIVAL, self._arrive, (position, at_ms))

    def _arrive(self, arrival: tuple[int, float]) -> None:
        position, at_ms = arrival
        asked = self._trace.requests[position]
        prompt = self._prompts.prompt(asked)
        request = self._prompts.request(f"r{position}", asked, at_ms, prompt)
        self._records.arrival_ms[position] = at_ms
        self.ledger.apply(ev.Admitted(request, at_ms))
        self._send(Flight(position, asked, request, prompt, self._setup.retries), set())

    def _send(self, flight: Flight, tried: set[WorkerId]) -> None:
        now_ms, request_id = self._heap.now_ms, flight.request.id
        for _ in range(MAX_ATTEMPTS):
            if self._telemetry.before_each_decision:
                self._telemetry.refresh(self._workers, now_ms)
            chosen = self._front_end.decide(flight.request, tried, now_ms)
            if chosen is None:
                self.ledger.apply(ev.Failed(request_id, now_ms, "no worker can take the request"))
                self._end(flight, Status.REJECTED)
                return
            worker = self._by_id[chosen]
            if worker.alive:
                self._start(flight, worker)
                return
            tried.add(chosen)
            self.ledger.apply(ev.AttemptFailed(request_id, now_ms, "connection refused", unreachable=True))
        self.ledger.apply(ev.Failed(request_id, now_ms, "no worker could be reached"))
        self._end(flight, Status.FAILED)

    def _start(self, flight: Flight, worker: ModelledWorker) -> None:
        now_ms, records = self._heap.now_ms, self._records
        records.dispatched_ms[flight.position] = now_ms
        records.worker[flight.position] = worker.number
        if worker.end_ms < math.inf and worker.cut(now_ms):
            self._heap.push(worker.end_ms, Rank.STEP, self._run_ended, (worker, worker.run))
        try:
            worker.take(flight)
        except RequestRefusedError:
            self.ledger.apply(ev.Refused(flight.request.id, now_ms, 400))
            self._end(flight, Status.REJECTED)
            return
        if worker.end_ms == math.inf:
            self._begin(worker)

    def _end(self, flight: Flight, status: Status) -> None:
        now_ms = self._last_end_ms = self._heap.now_ms
        self._records.end(flight.position, status, now_ms)
        for at_ms, position in self._arrivals.ended(flight.position, now_ms, answered=status is Status.DONE):
            self._comes(at_ms, position)

    # ---- steps

    def _begin(self, worker: ModelledWorker) -> None:
        if worker.begin(self._heap.now_ms, self._noise):
            self._heap.push(worker.end_ms, Rank.STEP, self._run_ended, (worker, worker.run))

    def _run_ended(self, which: tuple[ModelledWorker, int]) -> None:
        worker, run = which
        if worker.run != run:
            return  # it was cut, or the worker died
        apply, now_ms = self.ledger.apply, self._heap.now_ms
        result = worker.finish(self._itl)
        for sequence in result.first:
            flight = worker.flights[sequence.request.id]
            flight.started = True
            self._records.first_token_ms[flight.position] = now_ms
            self._records.cached_tokens[flight.position] = sequence.cached_tokens or 0
            apply(ev.FirstToken(flight.request.id, now_ms))
        for sequence in result.finished:
            self._finish(worker, sequence)
        for flight, tokens in worker.reports(result.steps):
            apply(ev.Progress(flight.request.id, now_ms, tokens))
        for sequence in result.first:
            flight_or_none = worker.flights.get(sequence.request.id)
            if flight_or_none is not None:
                worker.started(flight_or_none)
        if result.events and self._setup.kv_events:
            self._announce(worker, result.events)
        self._begin(worker)

    def _finish(self, worker: ModelledWorker, sequence: Sequence) -> None:
        flight = worker.flights[sequence.request.id]
        flight.sequence = None
        cached, generated = sequence.cached_tokens or 0, sequence.generated
        worker.ended(flight, output_tokens=generated, cached_tokens=cached)
        self._records.output_tokens[flight.position] = generated
        self.ledger.apply(
            ev.Finished(flight.request.id, self._heap.now_ms, flight.asked.prompt_tokens, cached, generated)
        )
        self._end(flight, Status.DONE)

    # ---- KV events

    def _announce(self, worker: ModelledWorker, events: list[KvEvent]) -> None:
        if not self._setup.kv_event_delay_ms:
            self._telemetry.blocks(worker.id, events, self._heap.now_ms)
            return
        worker.announcements.append(events)
        heard_ms = self._heap.now_ms + self._setup.kv_event_delay_ms
        self._heap.push(heard_ms, Rank.KV, self._announced, (worker, worker.incarnation))

    def _announced(self, which: tuple[ModelledWorker, int]) -> None:
        """The oldest batch: they keep their order, whatever the order of simultaneous events."""
        worker, incarnation = which
        if worker.incarnation == incarnation and worker.announcements:
            self._telemetry.blocks(worker.id, worker.announcements.popleft(), self._heap.now_ms)


def _workers(trace: Trace, setup: Setup, block_tokens: int) -> list[ModelledWorker]:
    models = models_of(trace)
    made: list[ModelledWorker] = []
    for group in setup.groups:
        for _ in range(group.count):
            made.append(ModelledWorker(len(made), group, models, block_tokens, setup))
    return made
