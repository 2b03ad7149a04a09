"""Drains in any order of events: who drains gets nothing, who does not is judged by its health, and all ends."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.ledger.events import Admitted, Dispatched, Failed, Finished, HealthRead, WorkerJoined, WorkerLeft
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId, WorkerSpec, engine_of, worker_id
from pointsman.edge.serving.drains import Drains, Phase

ENGINES = ("a", "b")
LOOK = Request("look", "m", 0.0, 10)


class DrainMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_ms = 0.0
        self.ledger = Ledger()
        self.sequence = 0
        self.there: dict[str, WorkerId] = {}
        """Requests → their workers."""
        self.draining: set[str] = set()
        self.followed: list[str] = []
        self.drains = Drains(
            self.ledger, self.ledger.apply, self, lambda: ENGINES, lambda: self.now_ms, grace_s=60, cut_after_s=10
        )

    # ---- the dispatcher's part

    def migrate_from(self, worker: WorkerId, reason: str) -> int:
        """Every other one can."""
        moving = [one for one, at in self.there.items() if at == worker][::2]
        for one in moving:
            del self.there[one]
            self.ledger.apply(Failed(one, self.now_ms, reason))
        return len(moving)

    def cut(self, worker: WorkerId, reason: str) -> int:
        cut = [one for one, at in self.there.items() if at == worker]
        for one in cut:
            del self.there[one]
            self.ledger.apply(Failed(one, self.now_ms, reason))
        return len(cut)

    # ---- what happens

    @rule(engine=st.sampled_from(ENGINES), rank=st.integers(0, 1))
    def join(self, engine: str, rank: int) -> None:
        worker = worker_id(engine, rank)
        self._lose(worker)
        spec = WorkerSpec(worker, "http://x", "vllm", ("m",), rank=rank)
        self.ledger.apply(WorkerJoined(spec, self.now_ms))
        self.drains.joined(spec)

    @rule(engine=st.sampled_from(ENGINES), up=st.booleans())
    def probe(self, engine: str, up: bool) -> None:
        for worker in self.ledger.at_engine(engine):
            self.ledger.apply(HealthRead(worker, self.now_ms, up, up, "probe"))

    @rule(engine=st.sampled_from(ENGINES))
    def leave(self, engine: str) -> None:
        for worker in self.ledger.at_engine(engine):
            self._lose(worker)
            self.ledger.apply(WorkerLeft(worker, self.now_ms, "gone"))

    def _lose(self, worker: WorkerId) -> None:
        for one in [one for one, at in self.there.items() if at == worker]:
            del self.there[one]
            self.ledger.apply(Failed(one, self.now_ms, "lost"))

    @rule()
    def send(self) -> None:
        view = self.ledger.view(LOOK)
        for row in view.eligible_rows():
            self.sequence += 1
            request = Request(f"r{self.sequence}", "m", self.now_ms, 10)
            self.ledger.apply(Admitted(request, self.now_ms))
            self.ledger.apply(Dispatched(request.id, view.workers[row], self.now_ms))
            self.there[request.id] = view.workers[row]

    @precondition(lambda self: self.there)
    @rule()
    def finish(self) -> None:
        one = next(iter(self.there))
        del self.there[one]
        self.ledger.apply(Finished(one, self.now_ms))

    @rule(engine=st.sampled_from(ENGINES), grace_s=st.sampled_from([None, 0.0, 5.0]))
    def drain(self, engine: str, grace_s: float | None) -> None:
        self.draining.add(engine)
        self.drains.begin(engine, "test", grace_s, then=lambda: self.followed.append(engine))

    @rule(engine=st.sampled_from(ENGINES))
    def resume(self, engine: str) -> None:
        self.draining.discard(engine)
        self.drains.resume(engine)

    @rule(seconds=st.sampled_from([1.0, 11.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.now_ms += 1000 * seconds
        self.drains.look()

    # ---- what holds

    @invariant()
    def who_drains_gets_nothing(self) -> None:
        view = self.ledger.view(LOOK)
        for worker, code in zip(view.workers, view.column(Column.EXCLUSION).tolist(), strict=True):
            if engine_of(worker) in self.draining:
                assert code != Exclusion.NONE
            else:
                assert code != Exclusion.DRAINING

    @invariant()
    def what_is_shown_is_so(self) -> None:
        assert {drain.engine for drain in self.drains.all()} == self.draining
        for drain in self.drains.all():
            if drain.phase is Phase.DRAINED:
                assert not drain.then

    def teardown(self) -> None:
        """However it went, in the end nothing is left where it drains, and what was to follow has."""
        if not hasattr(self, "drains"):
            return
        for _ in range(8):
            self.now_ms += 61_000
            self.drains.look()
        for drain in self.drains.all():
            assert drain.phase is Phase.DRAINED
            assert self.drains.in_flight(drain.engine) == 0
            assert drain.engine in self.followed


DrainMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDrains = DrainMachine.TestCase
