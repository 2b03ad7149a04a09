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
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.view import NOT_ZERO, Column
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id

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
    @rule(data=st.data(), cached=st.integers(0, 300), generated=st.integers(0, 40))
    def dispatch(self, data: st.DataObject, cached: int, generated: int) -> None:
        flight = self.pick(data, at_worker=False)
        if flight is None:
            return
        worker = data.draw(st.sampled_from(sorted(self.fleet.live)))
        prompt_tokens = flight.request.prompt_tokens + generated
        rest = replace(flight.request, prompt_tokens=prompt_tokens) if generated else None
        self.ledger.apply(ev.Dispatched(flight.request.id, worker, self.now, cached, rest=rest))
        flight.worker, flight.incarnation = worker, self.fleet.live[worker]
        flight.prefill = prompt_tokens - min(cached, prompt_tokens)
        flight.kv = prompt_tokens
        flight.started = False

    @rule(data=st.data(), tokens=st.integers(0, 50))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        flight = self.pick(data, at_worker=True)
        if flight is None:
            return
        if not flight.started:
            self.ledger.apply(ev.FirstToken(flight.request.id, self.now))
            flight.started, flight.prefill = True, 0
        self.ledger.apply(ev.Progress(flight.request.id, self.now, tokens))
        flight.kv += tokens

    @rule(data=st.data(), fault=st.sampled_from([None, *Fault]))
    def attempt_fails(self, data: st.DataObject, fault: Fault | None) -> None:
        flight = self.pick(data, at_worker=True)
        if flight is None:
            return
        self.ledger.apply(ev.AttemptFailed(flight.request.id, self.now, "test", fault))
        flight.worker = flight.incarnation = None

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
            mine = [f for f in self.flights.values() if f.incarnation == self.fleet.live[worker.id]]
            assert worker.running == len(mine)
            assert worker.sequences == sum(f.request.sequences for f in mine)
            assert worker.prefill_tokens == sum(f.prefill for f in mine)
            assert worker.kv_tokens == sum(f.kv for f in mine)
        assert self.ledger.waiting == sum(f.worker is None for f in self.flights.values())
        assert self.ledger.in_flight == len(self.flights)

    @invariant()
    def promises_agree_with_the_naive_sums(self) -> None:
        request = Request("asks", "m", self.now, 1)
        view = self.ledger.view(request)
        for row, worker in enumerate(view.workers):
            mine = [f for f in self.flights.values() if f.incarnation == self.fleet.live[worker]]
            waiting = [f.request for f in mine if not f.started]
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
        assert (self.ledger.in_flight, self.ledger.waiting) == (0, 0)


LedgerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
