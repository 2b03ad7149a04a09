"""Simulation: the fleet, the front end and the requests on their way, as handlers of events in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

from pointsman.app.simulate.arrivals import Arrivals
from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.flight import Flight
from pointsman.app.simulate.front_end import FrontEnd, OnDecision
from pointsman.app.simulate.front_ends import Decides, FrontEnds, Told
from pointsman.app.simulate.intervals import IntervalCounter
from pointsman.app.simulate.kv import link_network, measurements
from pointsman.app.simulate.legs import Legs
from pointsman.app.simulate.outcome import Outcome, Status
from pointsman.app.simulate.placing import Placing
from pointsman.app.simulate.prompts import Prompts, models_of
from pointsman.app.simulate.records import Records
from pointsman.app.simulate.setup import Setup
from pointsman.app.simulate.stepping import Stepping
from pointsman.app.simulate.telemetry import Telemetry
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.links import LinkNetwork
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.engine_model.step import StepResult
from pointsman.core.ledger import events as ev
from pointsman.core.model.errors import ConfigError
from pointsman.core.model.fault import Fault
from pointsman.core.model.stage import Stage
from pointsman.core.model.worker import Role
from pointsman.core.policies.policy import Policy
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.timing.worker_times import WorkerTimes
from pointsman.core.workload.trace import Trace

_DRAINED = "drained by the setup"
OnProgress = Callable[[int, int], None]
"""Called now and then with the requests that ended, and all."""


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
        self._prompts = Prompts(trace, setup)
        self.block_tokens = self._prompts.block_tokens
        self._workers = _workers(trace, setup, self.block_tokens, seed)
        _check_roles(self._workers)
        chance = seed if policy_seed is None else policy_seed
        timing, priors = _times(self._workers, learn=setup.learn_times)
        ttl_ms = setup.prefix_ttl_ms
        front_ends = [
            FrontEnd(
                policy,
                self.block_tokens,
                ttl_ms,
                timing,
                chance + number,
                on_decision,
                priors,
                setup.guards,
                setup.transfer,
            )
            for number in range(setup.front_ends)
        ]
        self._front_end: Decides = front_ends[0]
        if setup.front_ends > 1:
            self._front_end = FrontEnds(front_ends, self._heap, setup.front_end_lag_ms)
        self.ledger: Told = self._front_end.ledger
        self._telemetry = Telemetry(self._heap, self.ledger, setup, self._prompts.spec)
        self._records = Records(trace)
        self._itl = IntervalCounter()
        self._stepping = Stepping(self._heap, self._itl, self._run_ended, self._reserved)
        local = setup.fallback_to_local
        self._placing = Placing(self._front_end, self._telemetry, self._workers, fallback_to_local=local)
        self._network: LinkNetwork = link_network(setup, [worker.group for worker in self._workers])
        self._legs = Legs(
            self._heap,
            self.ledger,
            self._stepping,
            self._network,
            self._workers,
            self._records,
            fallback_to_local=local,
            on_answer=self._answer,
            on_again=self._send,
            on_failed=self._fail,
            on_refused=self._refused,
        )
        self._drained: set[int] = set()
        self._last_end_ms = self._start_ms

    def run(self, on_progress: OnProgress | None = None) -> Outcome:
        """Everything, to the end of the last request."""
        self._open()
        heap, records, total = self._heap, self._records, len(self._trace)
        report = on_progress or _nobody
        every = max(1, total // 200)
        report_at = every
        while records.ended < total:
            heap.run_next()
            if records.ended >= report_at:
                report_at = min(total, records.ended + every)
                report(records.ended, total)
        for worker in self._workers:
            worker.close(self._last_end_ms)
        totals = [worker.totals() for worker in self._workers]
        return records.outcome(self._itl.histogram(), totals, self._start_ms, self._last_end_ms)

    def _open(self) -> None:
        push, setup = self._heap.push, self._setup
        for measured in measurements(setup, self._network, [worker.id for worker in self._workers], self._start_ms):
            self.ledger.apply(measured)
        for worker in self._workers:
            if worker.group.started_ms is None:
                worker.occupy(self._start_ms)
                self._join((worker, worker.starts))
            else:
                self._starts(worker, worker.group.started_ms)
        for failure in setup.failures:
            worker = self._workers[failure.worker]
            push(max(self._start_ms, failure.at_ms), Rank.FLEET, self._die, worker)
            if failure.back_after_ms is not None:
                self._starts(worker, failure.at_ms + failure.back_after_ms)
        for drain in setup.drains:
            push(max(self._start_ms, drain.at_ms), Rank.FLEET, self._drain, self._workers[drain.worker])
        for change in setup.role_changes:
            changed = (self._workers[change.worker], change.role)
            push(max(self._start_ms, change.at_ms), Rank.FLEET, self._change_role, changed)
        for slowdown in setup.slowdowns:
            slower = (self._workers[slowdown.worker], slowdown.factor)
            push(max(self._start_ms, slowdown.at_ms), Rank.FLEET, self._slow_down, slower)
        for number, worker in enumerate(self._workers, 1):
            first_ms = self._start_ms + self._telemetry.every_ms * number / len(self._workers)
            push(first_ms, Rank.METRICS, self._read, worker)
        for at_ms, position in self._arrivals.first():
            self._comes(at_ms, position)

    def close(self) -> None:
        """Let go of everything: it and the ledger refer to themselves, and would stay in memory until a collection."""
        vars(self.ledger).clear()
        vars(self).clear()

    # ---- the fleet

    def _starts(self, worker: ModelledWorker, at_ms: float) -> None:
        up_ms = max(self._start_ms, at_ms + self._setup.startup_ms)
        self._heap.push(max(self._start_ms, at_ms), Rank.FLEET, self._occupy, (worker, up_ms))

    def _occupy(self, start: tuple[ModelledWorker, float]) -> None:
        worker, up_ms = start
        if not worker.occupied:
            worker.occupy(self._heap.now_ms)
            self._heap.push(up_ms, Rank.FLEET, self._join, (worker, worker.starts))

    def _join(self, start: tuple[ModelledWorker, int]) -> None:
        worker, number = start
        if not worker.occupied or worker.starts != number:
            return  # it died before it was up
        now_ms = self._heap.now_ms
        worker.start()
        self._telemetry.joined(worker, now_ms)
        if worker.number in self._drained:
            self.ledger.apply(ev.WorkerDraining(worker.id, now_ms, _DRAINED))

    def _die(self, worker: ModelledWorker) -> None:
        now_ms = self._heap.now_ms
        if not worker.alive:
            worker.close(now_ms)  # it may have been starting
            return
        lost = worker.die(now_ms, self._itl)
        for flight in lost.answered:
            self._legs.drop(flight)
            if flight.sequence is not None and flight.first_token_ms is not None:
                self._records.output_tokens[flight.position] = flight.sequence.generated
            flight.sequence = None
            if flight.first_token_ms is not None or not flight.retries:
                # An accepted request is never sent twice: it may have been the one that killed the engine.
                self.ledger.apply(ev.Failed(flight.request.id, now_ms, f"{worker.id} broke off"))
                self._end(flight, Status.FAILED)
            else:
                flight.retries -= 1
                self.ledger.apply(
                    ev.AttemptFailed(flight.request.id, now_ms, f"{worker.id} broke off", Fault.UNREACHABLE)
                )
                flight.tried = {worker.id}
                self._send(flight)
        for flight in lost.legs:
            self._legs.broke_off(flight, worker)

    def _slow_down(self, slower: tuple[ModelledWorker, float]) -> None:
        worker, factor = slower
        self._stepping.interrupt(worker)
        worker.slow = worker.group.slow * factor

    def _change_role(self, changed: tuple[ModelledWorker, Role]) -> None:
        worker, role = changed
        worker.change_role(role)
        if worker.alive:
            self.ledger.apply(ev.RoleChanged(worker.id, self._heap.now_ms, role))

    def _drain(self, worker: ModelledWorker) -> None:
        self._drained.add(worker.number)
        if worker.alive:
            self.ledger.apply(ev.WorkerDraining(worker.id, self._heap.now_ms, _DRAINED))

    def _read(self, worker: ModelledWorker) -> None:
        if len(self._heap) < len(self._workers):
            # Each worker has one reading to come: nothing else is to come.
            raise RuntimeError(f"{len(self._trace) - self._records.ended} requests wait for ever")
        self._telemetry.read(worker, self._heap.now_ms)
        self._heap.push(self._heap.now_ms + self._telemetry.every_ms, Rank.METRICS, self._read, worker)

    # ---- requests

    def _comes(self, at_ms: float, position: int) -> None:
        self._heap.push(at_ms + self._setup.overhead_ms, Rank.ARRIVAL, self._arrive, (position, at_ms))

    def _arrive(self, arrival: tuple[int, float]) -> None:
        position, at_ms = arrival
        asked = self._trace.requests[position]
        prompt = self._prompts.prompt(asked)
        request = self._prompts.request(f"r{position}", asked, at_ms, prompt)
        self._records.arrival_ms[position] = at_ms
        self.ledger.apply(ev.Admitted(request, at_ms))
        self._send(Flight(position, asked, request, prompt, self._setup.retries))

    def _send(self, flight: Flight) -> None:
        now_ms, records = self._heap.now_ms, self._records
        placed = self._placing.place(flight, now_ms)
        if isinstance(placed, Status):
            self._end(flight, placed)
            return
        flight.worker, flight.cached_tokens = placed.worker.number, None
        records.prefill_worker[flight.position] = -1
        records.dispatched_ms[flight.position] = now_ms
        records.worker[flight.position] = flight.worker
        self._legs.start(flight, placed)

    def _answer(self, flight: Flight, fetches: bool) -> None:
        """Its worker gets it."""
        worker = self._workers[flight.worker]
        self._stepping.interrupt(worker)
        try:
            worker.take(flight, fetches=fetches)
        except RequestRefusedError:
            self.ledger.apply(ev.Refused(flight.request.id, self._heap.now_ms, 400))
            self._refused(flight)
            return
        self._stepping.wake(worker)

    def _refused(self, flight: Flight) -> None:
        self._legs.drop(flight)
        self._end(flight, Status.REJECTED)

    def _fail(self, flight: Flight, reason: str) -> None:
        self.ledger.apply(ev.Failed(flight.request.id, self._heap.now_ms, reason))
        self._end(flight, Status.FAILED)

    def _end(self, flight: Flight, status: Status) -> None:
        now_ms = self._last_end_ms = self._heap.now_ms
        self._records.end(flight.position, status, now_ms)
        for at_ms, position in self._arrivals.ended(flight.position, now_ms, answered=status is Status.DONE):
            self._comes(at_ms, position)

    # ---- steps

    def _run_ended(self, worker: ModelledWorker, result: StepResult) -> None:
        apply, now_ms = self.ledger.apply, self._heap.now_ms
        first = [worker.flights[each.request.id] for each in result.first if each.stage is Stage.WHOLE]
        for flight in first:
            flight.first_token_ms = now_ms
            self._records.first_token_ms[flight.position] = now_ms
            self._records.cached_tokens[flight.position] = _cached_tokens(flight)
            apply(ev.FirstToken(flight.request.id, now_ms))
        for sequence in result.finished:
            engine_id = sequence.request.id
            if sequence.stage is Stage.PREFILL:
                self._legs.prefilled(worker.legs[engine_id], worker, sequence.cached_tokens or 0)
            else:
                self._finish(worker, worker.flights[engine_id], sequence)
        self._telemetry.tokens(worker, now_ms)
        for flight in first:
            if flight.request.id in worker.flights:
                worker.started(flight)
        self._telemetry.blocks(worker)

    def _finish(self, worker: ModelledWorker, flight: Flight, sequence: Sequence) -> None:
        """It is answered."""
        prompt_tokens, cached_tokens, generated = flight.asked.prompt_tokens, _cached_tokens(flight), sequence.generated
        self.ledger.apply(ev.Finished(flight.request.id, self._heap.now_ms, prompt_tokens, cached_tokens, generated))
        if flight.cached_tokens is None:
            worker.computed_prompt(prompt_tokens, cached_tokens)
        worker.ended(flight, generated)
        flight.sequence = None
        self._records.output_tokens[flight.position] = generated
        self._end(flight, Status.DONE)

    def _reserved(self, worker: ModelledWorker, sequences: list[Sequence]) -> None:
        self._legs.reserved(worker, sequences)


def _nobody(ended: int, total: int) -> None:
    """Nobody asked for progress."""


def _workers(trace: Trace, setup: Setup, block_tokens: int, seed: int) -> list[ModelledWorker]:
    models = models_of(trace)
    made: list[ModelledWorker] = []
    for group in setup.groups:
        for _ in range(group.count):
            made.append(ModelledWorker(len(made), group, models, block_tokens, setup, seed))
    return made


def _times(
    workers: list[ModelledWorker], *, learn: bool
) -> tuple[dict[str, WorkerTimes] | None, dict[str, StepCoefficients] | None]:
    """Step times as policies get them, or what a front end that learns them begins with."""
    if learn:
        return None, {worker.group.profile.name: worker.group.profile.step for worker in workers}
    return {str(worker.id): WorkerTimes(worker.group.profile.step) for worker in workers}, None


def _check_roles(workers: list[ModelledWorker]) -> None:
    """Raise ConfigError where some compute prompts for others and nobody decodes."""
    models = {role: {m for w in workers if w.group.role is role for m in w.spec.models} for role in Role}
    alone = sorted(models[Role.PREFILL] - models[Role.DECODE] - models[Role.BOTH])
    if alone:
        raise ConfigError(f"workers for prefill need others that decode; there are none for {', '.join(alone)}")


def _cached_tokens(flight: Flight) -> int:
    """Prompt tokens that whoever computed its prompt did not have to compute."""
    if flight.cached_tokens is not None:
        return flight.cached_tokens
    return (flight.sequence.cached_tokens if flight.sequence is not None else None) or 0
