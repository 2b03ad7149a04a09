"""Random orders of events: counters never negative, exactly zero at rest, releases hit what was captured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import text_block_keys
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import NOT_ZERO, Column, Exclusion
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id

ENGINES = ("a", "b", "c")
COUNTED = (
    Column.RUNNING,
    Column.PREFILL_TOKENS,
    Column.KV_TOKENS,
    Column.WAITING_FIRST,
    Column.REMAINING_TOKENS,
    Column.SLO_WAITING,
    Column.SLO_DUE_MS,
    Column.SLO_DECODING,
    Column.SLO_TPOT_US,
    Column.TRANSFERS_OUT,
    Column.TRANSFERS_IN,
)
SLOS = (None, Slo(500.0), Slo(None, 50.5), Slo(1234.5, 20.0, "interactive"))


@dataclass
class Naive:
    """What one request adds to the worker that it was sent to."""

    request: Request
    incarnation: int | None = None
    worker: WorkerId | None = None
    prefill: int = 0
    kv: int = 0
    started: bool = False
    legs: NaiveLegs | None = None


@dataclass
class NaiveLegs:
    """What one request has at other workers. Workers are told by numbers of incarnations."""

    own: int
    """Tokens that its answering worker has to compute if nothing comes."""
    at: int | None = None
    """Where its prompt is computed apart; None: nowhere, or it is computed."""
    prefill: int = 0
    kept: tuple[int, int] | None = None
    """Where KV of it waits, and of how many tokens."""
    moves: tuple[int, int] | None = None
    """From where to where."""
    had_leg: bool = False
    prefill_told: bool = False
    move_told: bool = False
    pulls_to_leg: bool = False
    failed: bool = False

    def arrive(self) -> None:
        self.kept = self.moves = None
        self.pulls_to_leg = False

    def computed(self, answers_at: int, prompt_tokens: int) -> None:
        assert self.at is not None
        self.kept, self.moves = (self.at, prompt_tokens), (self.at, answers_at)
        self.at, self.prefill, self.move_told, self.pulls_to_leg = None, 0, False, False

    def free(self) -> None:
        self.at = self.kept = self.moves = None
        self.prefill = 0


@dataclass
class Fleet:
    """Incarnation numbers of live workers."""

    live: dict[WorkerId, int] = field(default_factory=dict)
    next: int = 0


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(text_block_bytes=16, step_priors={})
        self.now = 0.0
        self.count = 0
        self.flights: dict[str, Naive] = {}
        self.fleet = Fleet()
        self.ended = 0

    # ---- workers

    @initialize()
    def two_workers(self) -> None:
        self.join("a")
        self.join("b")

    @rule(engine=st.sampled_from(ENGINES))
    def join(self, engine: str) -> None:
        spec = WorkerSpec(worker_id(engine), f"http://{engine}", "vllm", ("m",))
        self.ledger.apply(ev.WorkerJoined(spec, self.now))
        self.ledger.apply(ev.HealthRead(spec.id, self.now, True, True, "answers"))
        self.fleet.next += 1
        self.fleet.live[spec.id] = self.fleet.next

    @precondition(lambda self: self.fleet.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.fleet.live)))
        self.ledger.apply(ev.WorkerLeft(worker, self.now, "test"))
        del self.fleet.live[worker]

    @precondition(lambda self: self.fleet.live)
    @rule(data=st.data(), models=st.sampled_from([("m",), ("m", "adapter"), ("other", "m")]))
    def change(self, data: st.DataObject, models: tuple[str, ...]) -> None:
        worker = data.draw(st.sampled_from(sorted(self.fleet.live)))
        self.ledger.apply(ev.WorkerChanged(WorkerSpec(worker, f"http://{worker}", "vllm", models), self.now))

    @precondition(lambda self: self.fleet.live)
    @rule(
        data=st.data(), running=st.integers(0, 9), waiting=st.integers(0, 9), capacity=st.none() | st.integers(1, 999)
    )
    def read(self, data: st.DataObject, running: int, waiting: int, capacity: int | None) -> None:
        worker = data.draw(st.sampled_from(sorted(self.fleet.live)))
        self.ledger.apply(ev.MetricsRead(worker, self.now, running, waiting, 0.5, capacity))

    @rule(passed=st.floats(0, 1e7))
    def tick(self, passed: float) -> None:
        self.now += passed
        self.ledger.apply(ev.Tick(self.now))

    # ---- requests

    @rule(
        text=st.sampled_from([b"", b"x" * 64, b"x" * 160, b"y" * 100]),
        tokens=st.integers(0, 200),
        sequences=st.integers(1, 4),
        streamed=st.booleans(),
        slo=st.sampled_from(SLOS),
        limit=st.none() | st.integers(0, 100),
    )
    def admit(
        self, text: bytes, tokens: int, sequences: int, streamed: bool, slo: Slo | None, limit: int | None
    ) -> None:
        self.count += 1
        request = Request(
            f"r{self.count}",
            "m",
            self.now,
            tokens,
            text_block_keys(text, 16, 0),
            sequences=sequences,
            streamed=streamed,
            slo=slo,
            max_output_tokens=limit,
        )
        self.ledger.apply(ev.Admitted(request, self.now))
        self.flights[request.id] = Naive(request)

    def pick(self, data: st.DataObject, at_worker: bool) -> Naive | None:
        names = sorted(r for r, f in self.flights.items() if (f.worker is not None) == at_worker)
        return self.flights[data.draw(st.sampled_from(names))] if names else None

    @precondition(lambda self: self.fleet.live)
    @rule(
        data=st.data(),
        cached=st.integers(0, 300),
        generated=st.integers(0, 40),
        apart=st.booleans(),
        pulled=st.none() | st.integers(0, 300),
    )
    def dispatch(self, data: st.DataObject, cached: int, generated: int, apart: bool, pulled: int | None) -> None:
        flight = self.pick(data, at_worker=False)
        if flight is None:
            return
        live = sorted(self.fleet.live)
        worker = data.draw(st.sampled_from(live))
        prompt_tokens = flight.request.prompt_tokens + generated
        rest = replace(flight.request, prompt_tokens=prompt_tokens) if generated else None
        prefill = pull = None
        others = [one for one in live if one != worker]
        if apart and others:
            prefill = ev.PrefillLeg(data.draw(st.sampled_from(others)), cached // 2)
        computes = worker if prefill is None else prefill.worker
        sources = [one for one in live if one != computes]
        if pulled is not None and sources:
            pull = ev.PullLeg(data.draw(st.sampled_from(sources)), pulled)
        self.ledger.apply(
            ev.Dispatched(flight.request.id, worker, self.now, cached, rest=rest, prefill=prefill, pull=pull)
        )
        flight.worker, flight.incarnation = worker, self.fleet.live[worker]
        own = flight.prefill = prompt_tokens - min(cached, prompt_tokens)
        flight.kv = prompt_tokens
        flight.started = False
        flight.legs = None
        if prefill is None and pull is None:
            return
        legs = flight.legs = NaiveLegs(own)
        there = min(prompt_tokens, 0 if pull is None else pull.tokens)
        if prefill is None:
            flight.prefill = min(own, prompt_tokens - there)
        else:
            flight.prefill, legs.had_leg, legs.at = 0, True, self.fleet.live[prefill.worker]
            legs.prefill = prompt_tokens - max(there, min(prefill.cached_tokens, prompt_tokens))
        if pull is not None:
            legs.moves = (self.fleet.live[pull.source], self.fleet.live[computes])
            legs.pulls_to_leg = prefill is not None

    def with_legs(self, data: st.DataObject) -> tuple[Naive, NaiveLegs] | None:
        names = sorted(name for name, f in self.flights.items() if f.worker is not None and f.legs is not None)
        flight = self.flights[data.draw(st.sampled_from(names))] if names else None
        return None if flight is None or flight.legs is None else (flight, flight.legs)

    @rule(data=st.data(), reported=st.none() | st.integers(0, 200))
    def prefill_ends(self, data: st.DataObject, reported: int | None) -> None:
        found = self.with_legs(data)
        if found is None:
            return
        flight, legs = found
        event = ev.PrefillEnded(flight.request.id, self.now, 200, reported)
        if not legs.had_leg or legs.prefill_told or legs.failed:
            self.refuses(event)
            return
        self.ledger.apply(event)
        legs.prefill_told = True
        if legs.at is not None:
            assert flight.incarnation is not None
            legs.computed(flight.incarnation, flight.kv)

    @rule(data=st.data(), fault=st.sampled_from([None, *Fault]))
    def prefill_fails(self, data: st.DataObject, fault: Fault | None) -> None:
        found = self.with_legs(data)
        if found is None:
            return
        flight, legs = found
        event = ev.PrefillFailed(flight.request.id, self.now, "test", fault)
        if legs.failed or flight.started:
            self.refuses(event)
            return
        self.ledger.apply(event)
        legs.free()
        legs.failed = True
        flight.prefill = legs.own

    @rule(
        data=st.data(),
        tokens=st.none() | st.integers(0, 300),
        size=st.none() | st.integers(0, 10**9),
        took=st.none() | st.floats(0, 1e6),
    )
    def transfer_ends(self, data: st.DataObject, tokens: int | None, size: int | None, took: float | None) -> None:
        found = self.with_legs(data)
        if found is None:
            return
        flight, legs = found
        event = ev.TransferEnded(flight.request.id, self.now, tokens, size, took)
        untold_pull = legs.pulls_to_leg and not legs.move_told
        if legs.failed or (legs.move_told and legs.at is None):
            self.refuses(event)
            return
        self.ledger.apply(event)
        if legs.at is not None and not untold_pull:
            assert flight.incarnation is not None
            legs.computed(flight.incarnation, flight.kv)
        legs.arrive()
        legs.move_told = True

    def refuses(self, event: ev.Event) -> None:
        try:
            self.ledger.apply(event)
        except LedgerError:
            return
        raise AssertionError(f"{event} was taken")

    @precondition(lambda self: self.fleet.live)
    @rule(data=st.data(), role=st.sampled_from(list(Role)))
    def role_changes(self, data: st.DataObject, role: Role) -> None:
        worker = data.draw(st.sampled_from(sorted(self.fleet.live)))
        self.ledger.apply(ev.RoleChanged(worker, self.now, role))
        shown = {one.id: one for one in self.ledger.snapshot().workers}[worker]
        assert shown.spec.role is role
        excluded = self.ledger.exclusions()[worker]
        assert (excluded is Exclusion.ROLE) <= (role is Role.PREFILL) <= (excluded is not Exclusion.NONE)

    @rule(data=st.data(), tokens=st.integers(0, 50))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        flight = self.pick(data, at_worker=True)
        if flight is None:
            return
        if not flight.started:
            self.ledger.apply(ev.FirstToken(flight.request.id, self.now))
            legs = flight.legs
            if legs is not None and not legs.failed:
                if legs.at is not None:
                    assert flight.incarnation is not None
                    legs.computed(flight.incarnation, flight.kv)
                legs.arrive()
            flight.started, flight.prefill = True, 0
        self.ledger.apply(ev.Progress(flight.request.id, self.now, tokens))
        flight.kv += tokens

    @rule(data=st.data(), fault=st.sampled_from([None, *Fault]))
    def attempt_fails(self, data: st.DataObject, fault: Fault | None) -> None:
        flight = self.pick(data, at_worker=True)
        if flight is None:
            return
        self.ledger.apply(ev.AttemptFailed(flight.request.id, self.now, "test", fault))
        flight.worker = flight.incarnation = flight.legs = None

    @rule(data=st.data(), how=st.sampled_from(["finished", "refused", "failed", "cancelled"]))
    def end(self, data: st.DataObject, how: str) -> None:
        flight = self.pick(data, at_worker=True)
        if flight is not None:
            self.finish(flight, how)

    @rule(data=st.data())
    def leave_the_queue(self, data: st.DataObject) -> None:
        flight = self.pick(data, at_worker=False)
        if flight is not None:
            self.finish(flight, "cancelled")

    def finish(self, flight: Naive, how: str) -> None:
        request_id = flight.request.id
        event: ev.Event = ev.Cancelled(request_id, self.now)
        if how == "finished":
            event = ev.Finished(request_id, self.now, 100, 10, 5)
        elif how == "refused":
            event = ev.Refused(request_id, self.now, 400)
        elif how == "failed":
            event = ev.Failed(request_id, self.now, "test")
        self.ledger.apply(event)
        del self.flights[request_id]
        self.ended += 1

    # ---- what must hold

    @invariant()
    def numbers_agree_with_the_naive_sums(self) -> None:
        snapshot = self.ledger.snapshot()
        for worker in snapshot.workers:
            number = self.fleet.live[worker.id]
            mine = [f for f in self.flights.values() if f.incarnation == number]
            legs = self.legs()
            computed = [one for one in legs if one.at == number]
            assert worker.running == len(mine) + len(computed)
            assert worker.sequences == sum(f.request.sequences for f in mine) + len(computed)
            assert worker.prefill_tokens == sum(f.prefill for f in mine) + sum(one.prefill for one in computed)
            kept = sum(one.kept[1] for one in legs if one.kept is not None and one.kept[0] == number)
            at_legs = sum(f.kv for f in self.flights.values() if f.legs is not None and f.legs.at == number)
            assert worker.kv_tokens == sum(f.kv for f in mine) + at_legs + kept
            assert worker.transfers_out == sum(one.moves is not None and one.moves[0] == number for one in legs)
            assert worker.transfers_in == sum(one.moves is not None and one.moves[1] == number for one in legs)
        assert self.ledger.waiting == sum(f.worker is None for f in self.flights.values())
        assert self.ledger.in_flight == len(self.flights)

    def legs(self) -> list[NaiveLegs]:
        return [f.legs for f in self.flights.values() if f.legs is not None]

    @invariant()
    def promises_agree_with_the_naive_sums(self) -> None:
        request = Request("asks", "m", self.now, 1)
        view = self.ledger.view(request)
        for row, worker in enumerate(view.workers):
            mine = [f for f in self.flights.values() if f.incarnation == self.fleet.live[worker]]
            number = self.fleet.live[worker]
            waiting = [f.request for f in mine if not f.started]
            waiting += [f.request for f in self.flights.values() if f.legs is not None and f.legs.at == number]
            due = [round(r.arrival_ms + r.slo.ttft_ms) for r in waiting if r.slo and r.slo.ttft_ms]
            tpot = [f.request.slo.tpot_ms for f in mine if f.started and f.request.slo and f.request.slo.tpot_ms]
            told = {column: int(view.table[column, row]) for column in COUNTED}
            assert told[Column.WAITING_FIRST] == len(waiting)
            assert (told[Column.SLO_WAITING], told[Column.SLO_DUE_MS]) == (len(due), sum(due))
            assert (told[Column.SLO_DECODING], told[Column.SLO_TPOT_US]) == (len(tpot), sum(tpot) * 1000)
            assert told[Column.REMAINING_TOKENS] >= 0

    @invariant()
    def nothing_is_negative(self) -> None:
        cells = self.ledger._fleet.table.cells
        assert (np.delete(cells, list(NOT_ZERO), axis=0) >= 0).all()

    @invariant()
    def every_ending_is_counted_once(self) -> None:
        totals = self.ledger.snapshot().totals
        assert totals.finished + totals.refused + totals.failed + totals.cancelled == self.ended

    def teardown(self) -> None:
        for flight in list(self.flights.values()):
            self.finish(flight, "cancelled")
        cells = self.ledger._fleet.table.cells
        assert not np.any(cells[list(COUNTED)])
        self.ledger.apply(ev.Tick(self.now + 1000))  # what was written down to learn from can be replayed
        left = [entry for entry in self.ledger._fleet._entries.values() if entry.busy]
        assert not left
        free = self.ledger._fleet.table._free
        assert len(free) == len(set(free)) == cells.shape[1] - len(self.fleet.live)
        assert (self.ledger.in_flight, self.ledger.waiting) == (0, 0)


LedgerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
