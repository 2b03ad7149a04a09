"""Random orders of events: nobody is left out without a reason, or for ever once it is well; one always stays."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import CanaryResult
from pointsman.core.ledger.health.quota import allowed_out
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerSpec, worker_id

WORKERS = [worker_id(name) for name in "abcd"]
KINDS = {"a/0": "vllm", "b/0": "vllm", "c/0": "llamacpp", "d/0": "openai"}
LEFT_OUT = (Exclusion.FAILING, Exclusion.NOT_SERVING)
workers = st.sampled_from(WORKERS)


class HealthMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(health=HealthSettings(failures=2), step_priors={})
        self.now = 0.0
        self.count = 0
        self.flights: dict[str, bool] = {}
        """Request → it had its first token."""
        self.sent: dict[str, float] = {}
        self.draining: set[str] = set()

    @initialize()
    def begin(self) -> None:
        for worker in WORKERS:
            self.join(worker)

    @rule(worker=workers)
    def join(self, worker) -> None:
        self.ledger.apply(ev.WorkerJoined(WorkerSpec(worker, "http://e", KINDS[worker], ("m",)), self.now))
        self.draining.discard(worker)

    @rule(worker=workers, reachable=st.booleans(), ready=st.booleans(), refused=st.booleans())
    def probe(self, worker, reachable: bool, ready: bool, refused: bool) -> None:
        self.ledger.apply(ev.HealthRead(worker, self.now, reachable, ready, "said so", refused))

    @rule(
        worker=workers, running=st.integers(0, 4), waiting=st.integers(0, 4), generated=st.none() | st.integers(0, 99)
    )
    def read(self, worker, running: int, waiting: int, generated: int | None) -> None:
        self.ledger.apply(ev.MetricsRead(worker, self.now, running, waiting, generated_tokens=generated))

    @rule(worker=workers, streams=st.integers(0, 6), tokens=st.integers(0, 50), quiet=st.floats(0, 30_000))
    def streams(self, worker, streams: int, tokens: int, quiet: float) -> None:
        self.ledger.apply(ev.StreamsRead(worker, self.now, streams, tokens, self.now - quiet, quiet))

    @rule(worker=workers)
    def send(self, worker) -> None:
        self.count += 1
        request = Request(f"r{self.count}", "m", self.now, 100, streamed=self.count % 5 > 0)
        self.ledger.apply(ev.Admitted(request, self.now))
        self.ledger.apply(ev.Dispatched(request.id, worker, self.now))
        self.flights[request.id] = False

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), how=st.sampled_from([*Fault, "first", "finished", "cancelled", "refused", "retry"]))
    def happens(self, data: st.DataObject, how: str) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.flights)))
        if how == "first":
            if not self.flights[request_id]:
                self.ledger.apply(ev.FirstToken(request_id, self.now))
                self.flights[request_id] = True
            return
        del self.flights[request_id]
        if how == "finished":
            self.ledger.apply(ev.Finished(request_id, self.now, 100, 0, 5))
        elif how == "cancelled":
            self.ledger.apply(ev.Cancelled(request_id, self.now))
        elif how == "refused":
            self.ledger.apply(ev.Refused(request_id, self.now, 400))
        elif how == "retry":
            fault = data.draw(st.sampled_from([None, *Fault]))
            self.ledger.apply(ev.AttemptFailed(request_id, self.now, "it failed", fault, 500.0))
            self.ledger.apply(ev.Dispatched(request_id, data.draw(workers), self.now))
            self.flights[request_id] = False
        else:
            self.ledger.apply(ev.Failed(request_id, self.now, "it failed", Fault(how)))

    @rule(worker=workers)
    def send_canary(self, worker) -> None:
        self.sent[worker] = self.now
        self.ledger.apply(ev.CanarySent(worker, self.now))

    @rule(worker=workers, result=st.sampled_from(CanaryResult), stale=st.booleans())
    def canary(self, worker, result: CanaryResult, stale: bool) -> None:
        sent = self.sent.get(worker, 0.0) - stale
        self.ledger.apply(ev.CanaryRead(worker, self.now, sent, result, str(result), 50.0))

    @rule(worker=workers, resumes=st.booleans())
    def drain(self, worker, resumes: bool) -> None:
        (self.draining.discard if resumes else self.draining.add)(worker)
        event = ev.WorkerResumed(worker, self.now) if resumes else ev.WorkerDraining(worker, self.now, "asked to")
        self.ledger.apply(event)

    @rule(seconds=st.sampled_from([0.1, 1, 1, 1, 5, 30]), times=st.integers(1, 15))
    def tick(self, seconds: float, times: int) -> None:
        for _ in range(times):
            self.now += 1000.0 * seconds
            self.ledger.apply(ev.Tick(self.now))

    # ---- what must hold

    def exclusions(self) -> dict[str, Exclusion]:
        view = self.ledger.view(Request("asks", "m", self.now, 1))
        return {w: Exclusion(int(x)) for w, x in zip(view.workers, view.column(Column.EXCLUSION), strict=True)}

    @invariant()
    def nobody_is_excluded_without_a_reason(self) -> None:
        for worker in self.ledger.snapshot().workers:
            if not worker.usable:
                assert worker.reason
                assert worker.state != "ready"

    @invariant()
    def never_too_many_are_left_out_for_what_traffic_says(self) -> None:
        workers = self.ledger.snapshot().workers
        probed = [w for w in workers if w.health.live.state == w.health.ready.state == "yes"]
        could = [w for w in probed if w.id not in self.draining]
        out = [w for w in could if w.state.upper() in {e.name for e in LEFT_OUT}]
        assert len(out) <= allowed_out(len(could), 0.5)
        paused = [w for w in could if w.state == "paused"]
        assert not could or len(out) + len(paused) < len(could)

    @invariant()
    def serving_follows_from_where_it_stands(self) -> None:
        for worker in self.ledger.snapshot().workers:
            health = worker.health
            if health.position in ("out", "trial"):
                assert health.serving.state == "no"
                assert health.reason
            if health.serving.state == "no":
                assert health.position in ("out", "trial")

    def teardown(self) -> None:
        """All is well from now on: half an hour later everybody is used."""
        for request_id in list(self.flights):
            self.ledger.apply(ev.Cancelled(request_id, self.now))
        for worker in WORKERS:
            self.ledger.apply(ev.WorkerResumed(worker, self.now))
            for _ in range(2):
                self.ledger.apply(ev.MetricsRead(worker, self.now, 0, 0))
        for second in range(1_800):
            self.now += 1_000.0
            if second % 5 == 0:
                for worker in WORKERS:
                    self.ledger.apply(ev.HealthRead(worker, self.now, True, True, "answers"))
            self.ledger.apply(ev.Tick(self.now))
            for due in self.ledger.canaries_due(self.now):
                self.ledger.apply(ev.CanarySent(due.worker, self.now))
                self.ledger.apply(ev.CanaryRead(due.worker, self.now, self.now, CanaryResult.PASSED, "ok", 50.0))
            for worker, exclusion in self.exclusions().items():
                if exclusion is Exclusion.NONE and second % 10 == 0:
                    request = Request(f"well{second}{worker}", "m", self.now, 10)
                    self.ledger.apply(ev.Admitted(request, self.now))
                    self.ledger.apply(ev.Dispatched(request.id, worker, self.now))
                    self.ledger.apply(ev.FirstToken(request.id, self.now))
                    self.ledger.apply(ev.Finished(request.id, self.now, 10, 0, 5))
            if second > 600 and set(self.exclusions().values()) == {Exclusion.NONE}:
                break
        assert set(self.exclusions().values()) == {Exclusion.NONE}
        for worker in self.ledger.snapshot().workers:
            assert (worker.running, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0)
            assert worker.health.position == "trusted"
            assert not worker.health.kept


# Each example goes on for half an hour of its time, so that shrinking one would take minutes.
HealthMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
TestHealthMachine = HealthMachine.TestCase
