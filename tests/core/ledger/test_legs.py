from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import salt_seed, text_block_keys
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.fault import Fault
from pointsman.core.model.guards import Guards
from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.replica import WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.view import STAGE_DECODE, STAGE_PREFILL, Column, Exclusion, FleetView
from pointsman.core.model.worker import Role, WorkerSpec, worker_id
from pointsman.core.timing.step import StepCoefficients

P, D, S = worker_id("p"), worker_id("d"), worker_id("s")
KV = KvShape(HandShake.BLOCKS, 16, bytes_per_token=1000, parts=True)
TEXT = b"0123456789abcdef" * 8
STEP = StepCoefficients(10.0, 0.1, 0.1, 0.1)
CHANGES = ("running", "prefill_tokens", "kv_tokens", "waiting_first", "transfers_out", "transfers_in")
REST = (0, 0, 0, 0, 0, 0)


def request(name: str = "r", tokens: int = 100, **fields: object) -> Request:
    keys = text_block_keys(TEXT, 16, salt_seed(b"m"))
    return Request(name, "m", 0.0, tokens, keys, **fields)  # type: ignore[arg-type]


def spec(name: str, **fields: object) -> WorkerSpec:
    defaults: dict[str, object] = {"url": f"http://{name}:1", "kind": "vllm", "models": ("m",), "kv": KV}
    return WorkerSpec(worker_id(name), **(defaults | fields))  # type: ignore[arg-type]


def fleet(*specs: WorkerSpec, **settings: object) -> Ledger:
    ledger = Ledger(text_block_bytes=16, **settings)  # type: ignore[arg-type]
    for one in specs or (spec("p", role=Role.PREFILL), spec("d", role=Role.DECODE), spec("s")):
        ledger.apply(ev.WorkerJoined(one, 0.0))
        ledger.apply(ev.HealthRead(one.id, 0.0, True, True, "answers"))
    return ledger


def numbers(ledger: Ledger, worker: str) -> tuple[int, ...]:
    view = view_of(ledger)
    row = view.workers.index(worker_id(worker))
    return tuple(int(view.column(Column[name.upper()])[row]) for name in CHANGES)


def view_of(ledger: Ledger, **fields: object) -> FleetView:
    return ledger.view(Request("asks", "m", 0.0, 1, **fields))  # type: ignore[arg-type]


def cell(ledger: Ledger, worker: str, column: Column, **fields: object) -> int:
    view = view_of(ledger, **fields)
    return int(view.column(column)[view.workers.index(worker_id(worker))])


def dispatched(ledger: Ledger, at_ms: float = 0.0, asked: Request | None = None, **fields: object) -> None:
    asked = asked or request()
    if not ledger.holds(asked.id):
        ledger.apply(ev.Admitted(asked, at_ms))
    if not fields.get("pull"):
        fields = {"prefill": ev.PrefillLeg(P, 40)} | fields
    ledger.apply(ev.Dispatched(asked.id, D, at_ms, 10, **fields))  # type: ignore[arg-type]


class TestPrefillApart:
    def test_counts_as_one_sequence_and_its_prompt_where_that_is_computed(self) -> None:
        ledger = fleet()
        dispatched(ledger, asked=request(sequences=3))
        assert numbers(ledger, "p") == (1, 60, 100, 1, 0, 0)
        assert numbers(ledger, "d") == (3, 0, 100, 1, 0, 0)
        assert cell(ledger, "d", Column.REMAINING_TOKENS) > 0
        assert cell(ledger, "p", Column.REMAINING_TOKENS) == 0
        assert (ledger.in_flight, ledger.waiting) == (1, 0)

    def test_after_the_prefill_only_its_kv_stays_there_until_it_arrived(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.PrefillEnded("r", 50.0, 100, 30))
        assert numbers(ledger, "p") == (0, 0, 100, 0, 1, 0)
        assert numbers(ledger, "d") == (1, 0, 100, 1, 0, 1)
        ledger.apply(ev.TransferEnded("r", 60.0))
        assert numbers(ledger, "p") == REST
        assert numbers(ledger, "d") == (1, 0, 100, 1, 0, 0)

    @pytest.mark.parametrize("told_before", [True, False])
    def test_the_first_token_says_that_all_of_it_is_over_elsewhere(self, told_before: bool) -> None:
        ledger = fleet()
        dispatched(ledger)
        if told_before:
            ledger.apply(ev.PrefillEnded("r", 50.0))
        ledger.apply(ev.FirstToken("r", 60.0))
        assert numbers(ledger, "p") == REST
        assert numbers(ledger, "d") == (1, 0, 100, 0, 0, 0)
        p, d, _ = ledger.snapshot().workers
        assert (p.totals.prefills, p.totals.transfers_out, d.totals.transfers_in) == (1, 1, 1)

    def test_an_answer_of_the_prefill_that_is_read_late_still_tells_its_numbers_once(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.FirstToken("r", 60.0))
        ledger.apply(ev.PrefillEnded("r", 61.0, 100, 30))
        p = ledger.snapshot().workers[0]
        assert (p.totals.prefills, p.totals.reported_cached_tokens, p.totals.predicted_cached_tokens) == (1, 30, 40)
        with pytest.raises(LedgerError, match="no prefill under way"):
            ledger.apply(ev.PrefillEnded("r", 62.0))
        assert numbers(ledger, "p") == REST

    @pytest.mark.parametrize("after", ["dispatch", "prefill", "transfer", "first"])
    @pytest.mark.parametrize("how", ["finished", "refused", "failed", "cancelled", "attempt"])
    def test_any_end_frees_both_sides(self, after: str, how: str) -> None:
        ledger = fleet()
        dispatched(ledger)
        if after != "dispatch":
            ledger.apply(ev.PrefillEnded("r", 1.0))
        if after in ("transfer", "first"):
            ledger.apply(ev.TransferEnded("r", 2.0, 100, 100_000, 1.0))
        if after == "first":
            ledger.apply(ev.FirstToken("r", 3.0))
        ends: dict[str, ev.Event] = {
            "finished": ev.Finished("r", 4.0, 100, 99, 7),
            "refused": ev.Refused("r", 4.0, 400),
            "failed": ev.Failed("r", 4.0, "test", Fault.LOST),
            "cancelled": ev.Cancelled("r", 4.0),
            "attempt": ev.AttemptFailed("r", 4.0, "test", Fault.LOST),
        }
        ledger.apply(ends[how])
        for worker in ("p", "d", "s"):
            assert numbers(ledger, worker) == REST
        assert ledger.at_engine("p") == {P: 0}
        assert ledger.waiting == (how == "attempt")

    def test_after_a_failed_attempt_it_goes_on_with_another_plan(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.AttemptFailed("r", 1.0, "lost", Fault.LOST))
        ledger.apply(ev.Dispatched("r", S, 2.0, pull=ev.PullLeg(D, 32)))
        assert numbers(ledger, "p") == REST
        assert numbers(ledger, "d") == (0, 0, 0, 0, 1, 0)
        assert numbers(ledger, "s") == (1, 68, 100, 1, 0, 1)
        ledger.apply(ev.AttemptFailed("r", 3.0, "lost", Fault.LOST))
        ledger.apply(ev.Dispatched("r", S, 4.0))
        assert numbers(ledger, "s") == (1, 100, 100, 1, 0, 0)
        with pytest.raises(LedgerError, match="at one worker only"):
            ledger.apply(ev.PrefillEnded("r", 5.0))

    @pytest.mark.parametrize("prefill_ended", [True, False])
    def test_when_it_fails_the_worker_that_answers_computes_all_that_it_does_not_hold(
        self, prefill_ended: bool
    ) -> None:
        ledger = fleet()
        dispatched(ledger)
        if prefill_ended:
            ledger.apply(ev.PrefillEnded("r", 1.0))
        ledger.apply(ev.PrefillFailed("r", 2.0, "connection lost", Fault.LOST))
        assert numbers(ledger, "p") == REST
        assert numbers(ledger, "d") == (1, 90, 100, 1, 0, 0)
        p, d, _ = ledger.snapshot().workers
        assert (p.faults.counts[Fault.LOST], p.totals.prefills_failed, d.totals.attempts_failed) == (1, 1, 0)
        for event in (ev.PrefillFailed("r", 3.0, "again"), ev.TransferEnded("r", 3.0)):
            with pytest.raises(LedgerError):
                ledger.apply(event)
        ledger.apply(ev.FirstToken("r", 4.0))
        ledger.apply(ev.Finished("r", 5.0, 100, 10, 3))
        assert numbers(ledger, "d") == REST
        assert ledger.snapshot().workers[1].totals.predicted_cached_tokens == 10

    def test_both_workers_must_be_there_and_differ_else_nothing_changes(self) -> None:
        ledger = fleet()
        ledger.apply(ev.Admitted(request(), 0.0))
        for fields in (
            {"prefill": ev.PrefillLeg(D)},
            {"prefill": ev.PrefillLeg(worker_id("gone"))},
            {"pull": ev.PullLeg(D, 16)},
            {"pull": ev.PullLeg(worker_id("gone"), 16)},
            {"prefill": ev.PrefillLeg(P), "pull": ev.PullLeg(P, 16)},
        ):
            with pytest.raises(LedgerError):
                ledger.apply(ev.Dispatched("r", D, 0.0, **fields))  # type: ignore[arg-type]
            assert ledger.waiting == 1
            assert [numbers(ledger, one) for one in ("p", "d", "s")] == [REST] * 3

    @pytest.mark.parametrize("again", [True, False])
    def test_a_prefill_worker_that_leaves_meanwhile_keeps_its_slot_until_the_request_is_over(self, again: bool) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.PrefillEnded("r", 1.0))
        ledger.apply(ev.WorkerLeft(P, 2.0, "killed"))
        for number in range(20):
            ledger.apply(ev.WorkerJoined(spec(f"n{number}"), 3.0))
        if again:
            ledger.apply(ev.WorkerJoined(spec("p"), 3.0))
            assert numbers(ledger, "p") == REST
        ledger.apply(ev.PrefillFailed("r", 4.0, "lost", Fault.UNREACHABLE))
        assert numbers(ledger, "d") == (1, 90, 100, 1, 0, 0)
        ledger.apply(ev.Cancelled("r", 5.0))
        for worker in view_of(ledger).workers:
            assert numbers(ledger, worker.removesuffix("/0")) == REST

    def test_the_prompt_is_thought_to_be_held_at_both_and_of_a_failed_prefill_at_one(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        view = ledger.view(request("again"))
        assert (view.column(Column.CACHED_TOKENS) > 0).tolist() == [True, True, False]
        ledger.apply(ev.PrefillFailed("r", 1.0, "refused", Fault.UNREACHABLE))
        view = ledger.view(request("again"))
        assert (view.column(Column.CACHED_TOKENS) > 0).tolist() == [False, True, False]

    def test_promises_of_a_first_token_count_where_it_waits(self) -> None:
        from pointsman.core.model.slo import Slo

        ledger = fleet()
        dispatched(ledger, asked=request(slo=Slo(500.0)))
        assert [cell(ledger, one, Column.SLO_WAITING) for one in "pd"] == [1, 1]
        ledger.apply(ev.PrefillEnded("r", 1.0))
        assert [cell(ledger, one, Column.SLO_WAITING) for one in "pd"] == [0, 1]

    def test_drift_is_the_side_that_computed(self) -> None:
        ledger = fleet()
        for number in range(30):
            asked = request(f"r{number}", 1000)
            dispatched(ledger, asked=asked, prefill=ev.PrefillLeg(P, 500))
            ledger.apply(ev.PrefillEnded(asked.id, 1.0, 1000, 0))
            ledger.apply(ev.FirstToken(asked.id, 2.0))
            ledger.apply(ev.Finished(asked.id, 3.0, 1000, 1000, 5))
        p, d, _ = ledger.snapshot().workers
        assert p.drift == pytest.approx(0.5)
        assert d.drift is None
        assert ledger.snapshot().totals.reported_prompt_tokens == 30_000


class TestPull:
    def test_what_is_fetched_is_not_computed(self) -> None:
        ledger = fleet()
        dispatched(ledger, pull=ev.PullLeg(S, 64))
        assert numbers(ledger, "s") == (0, 0, 0, 0, 1, 0)
        assert numbers(ledger, "d") == (1, 36, 100, 1, 0, 1)
        ledger.apply(ev.TransferEnded("r", 5.0, 54, 54_000, 2.0))
        assert numbers(ledger, "s") == REST
        assert numbers(ledger, "d") == (1, 36, 100, 1, 0, 0)
        ledger.apply(ev.FirstToken("r", 9.0))
        ledger.apply(ev.Finished("r", 10.0, 100, 64, 3))
        assert numbers(ledger, "d") == REST
        assert ledger.snapshot().workers[1].drift is None

    def test_what_does_not_come_is_computed_and_the_source_is_to_blame(self) -> None:
        ledger = fleet()
        dispatched(ledger, pull=ev.PullLeg(S, 64))
        ledger.apply(ev.PrefillFailed("r", 5.0, "lost", Fault.LOST))
        assert numbers(ledger, "s") == REST
        assert numbers(ledger, "d") == (1, 90, 100, 1, 0, 0)
        assert ledger.snapshot().workers[2].faults.counts[Fault.LOST] == 1

    def test_a_prefill_apart_may_fetch_its_beginning_too(self) -> None:
        ledger = fleet()
        ledger.apply(ev.Admitted(request(), 0.0))
        ledger.apply(ev.Dispatched("r", D, 0.0, prefill=ev.PrefillLeg(P), pull=ev.PullLeg(S, 64)))
        assert numbers(ledger, "p") == (1, 36, 100, 1, 0, 1)
        ledger.apply(ev.TransferEnded("r", 1.0, 64, 64_000, 1.0))
        assert numbers(ledger, "p") == (1, 36, 100, 1, 0, 0)
        assert numbers(ledger, "s") == REST
        ledger.apply(ev.PrefillEnded("r", 2.0))
        assert numbers(ledger, "p") == (0, 0, 100, 0, 1, 0)
        ledger.apply(ev.TransferEnded("r", 3.0, 100, 100_000, 1.0))
        assert ledger.snapshot().totals.moved_in_bytes == 164_000
        ledger.apply(ev.Finished("r", 4.0))
        assert [numbers(ledger, one) for one in ("p", "d", "s")] == [REST] * 3

    def test_a_source_that_is_drained_waits_until_it_was_fetched(self) -> None:
        ledger = fleet()
        dispatched(ledger, pull=ev.PullLeg(S, 64))
        assert ledger.at_engine("s") == {S: 1}
        ledger.apply(ev.TransferEnded("r", 5.0))
        assert ledger.at_engine("s") == {S: 0}


class TestTotals:
    def test_bytes_are_as_told_else_as_thought(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.FirstToken("r", 1.0))
        assert ledger.snapshot().totals.moved_in_bytes == 90 * 1000
        ledger.apply(ev.TransferEnded("r", 2.0, 96, 50_000, 1.0))
        total = ledger.snapshot().totals
        assert (total.moved_tokens, total.moved_in_bytes, total.moved_out_bytes) == (96, 50_000, 50_000)
        assert (total.transfers_in, total.transfers_out) == (1, 1)


class TestOthers:
    def test_other_front_ends_are_told_of_both_sides(self) -> None:
        ledger, other = fleet(), fleet()
        ledger.tell_others(lambda: None)
        dispatched(ledger)
        ledger.apply(ev.PrefillEnded("r", 1.0))
        news = ledger.news(1.0)
        assert news.shares[P] == WorkerShare(kv_tokens=100, transfers_out=1)
        assert news.shares[D].transfers_in == 1
        other.apply(ev.ReplicaTold("f1", 1.0, news))
        assert numbers(other, "p") == (0, 0, 100, 0, 1, 0)
        assert other.snapshot().workers[0].transfers_out == 0
        ledger.apply(ev.Cancelled("r", 2.0))
        other.apply(ev.ReplicaTold("f1", 2.0, ledger.news(2.0)))
        assert [numbers(other, one) for one in "pd"] == [REST] * 2


class TestHealth:
    def test_a_prefill_that_was_answered_shows_that_its_worker_works(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        assert ledger.snapshot().workers[0].health.serving.state.value != "yes"
        ledger.apply(ev.PrefillEnded("r", 1.0))
        assert ledger.snapshot().workers[0].health.serving.state.value == "yes"

    def test_prefills_that_fail_leave_their_worker_out(self) -> None:
        ledger = fleet(spec("p", role=Role.PREFILL), spec("q", role=Role.PREFILL), spec("d"), health=HealthSettings())
        for number in range(12):
            asked = request(f"r{number}")
            dispatched(ledger, float(number), asked)
            ledger.apply(ev.PrefillFailed(asked.id, number + 0.5, "500", Fault.SERVER_ERROR))
        assert ledger.exclusions()[P] is Exclusion.FAILING
        assert ledger.exclusions()[D] is Exclusion.NONE

    def test_a_retry_because_of_the_other_worker_is_budgeted_and_blames_nobody_twice(self) -> None:
        ledger = fleet()
        fault = Fault.SERVER_ERROR
        for number in range(200):
            if not ledger.may_retry(0.0):
                break
            asked = request(f"r{number}")
            dispatched(ledger, 0.0, asked)
            ledger.apply(ev.PrefillFailed(asked.id, 0.0, "500", fault))
            ledger.apply(ev.AttemptFailed(asked.id, 0.0, "500", fault, of_other=True))
            ledger.apply(ev.Cancelled(asked.id, 0.0))
        assert 50 < number < 199
        faults = {worker.id: worker.faults.counts for worker in ledger.snapshot().workers}
        assert (faults[P], faults[D]) == ({fault: number}, {})
        assert numbers(ledger, "p") == numbers(ledger, "d") == REST

    def test_a_worker_that_waits_for_kv_is_not_taken_to_be_silent(self) -> None:
        settings = HealthSettings(heartbeat_ms=2_000.0)
        ledger = fleet(spec("p", role=Role.PREFILL), spec("d"), spec("s"), health=settings, step_priors={})
        for worker in (D, S):  # it worked before
            ledger.apply(ev.Admitted(request("w"), 0.0))
            ledger.apply(ev.Dispatched("w", worker, 0.0))
            ledger.apply(ev.FirstToken("w", 1.0))
            ledger.apply(ev.Finished("w", 2.0))
        dispatched(ledger, 10.0)
        at_ms = 10.0
        for _ in range(20):
            at_ms += 1_000.0
            ledger.apply(ev.StreamsRead(D, at_ms, 0, 0, 0.0, 0.0))
            ledger.apply(ev.Tick(at_ms))
        assert ledger.exclusions()[D] is Exclusion.NONE
        assert ledger.canaries_due(at_ms) == ()
        ledger.apply(ev.PrefillFailed("r", at_ms, "late", Fault.LATE))  # from now on it is to compute itself
        for _ in range(20):
            at_ms += 1_000.0
            ledger.apply(ev.StreamsRead(D, at_ms, 0, 0, 0.0, 0.0))
            ledger.apply(ev.Tick(at_ms))
        assert ledger.exclusions()[D] is Exclusion.NOT_SERVING


class TestStepTimes:
    def served(self, ledger: Ledger, transfer_ms: float) -> None:
        """Prompts computed at p in exactly the prior's time, moved for as long as asked, decoded at d."""
        at_ms = 0.0
        prefill_ms = STEP.a_ms + 1000 * STEP.d_ms_per_prefill_token
        for number in range(60):
            asked = request(f"r{number}", 1000)
            dispatched(ledger, at_ms, asked, prefill=ev.PrefillLeg(P))
            at_ms += prefill_ms
            ledger.apply(ev.PrefillEnded(asked.id, at_ms))
            at_ms += transfer_ms
            ledger.apply(ev.TransferEnded(asked.id, at_ms))
            step_ms = STEP.a_ms + STEP.b_ms_per_sequence + STEP.c_ms_per_1000_context_tokens
            at_ms += step_ms
            ledger.apply(ev.FirstToken(asked.id, at_ms))
            for _ in range(3):
                at_ms += 16 * step_ms
                ledger.apply(ev.Progress(asked.id, at_ms, 16))
            ledger.apply(ev.Finished(asked.id, at_ms, 1000, 1000, 49))
            ledger.apply(ev.Tick(at_ms))

    @pytest.mark.parametrize("transfer_ms", [1.0, 2_000.0])
    def test_neither_side_learns_the_others_work_nor_the_transfer(self, transfer_ms: float) -> None:
        prior = {"x": STEP}
        ledger = fleet(
            spec("p", role=Role.PREFILL, profile="x"), spec("d", role=Role.DECODE, profile="x"), step_priors=prior
        )
        self.served(ledger, transfer_ms)
        p, d = (ledger.timing[worker] for worker in (P, D))
        assert p.step.d_ms_per_prefill_token == pytest.approx(STEP.d_ms_per_prefill_token, rel=0.1)
        assert d.step.a_ms == pytest.approx(STEP.a_ms, rel=0.1)
        assert d.step.d_ms_per_prefill_token == pytest.approx(STEP.d_ms_per_prefill_token, rel=0.1)
        shown = {worker.id: worker.times for worker in ledger.snapshot().workers}
        assert all(times is not None and times.intervals > 30 for times in shown.values())

    @pytest.mark.parametrize("streamed", [True, False])
    def test_a_pull_of_which_nobody_told_the_end_teaches_no_compute(self, streamed: bool) -> None:
        ledger = fleet(spec("d", profile="x"), spec("s", profile="x"), step_priors={"x": STEP})
        at_ms = 0.0
        for number in range(40):
            asked = request(f"r{number}", 1000, streamed=streamed)
            dispatched(ledger, at_ms, asked, pull=ev.PullLeg(S, 992))
            at_ms += 5_000.0
            ledger.apply(ev.FirstToken(asked.id, at_ms))
            ledger.apply(ev.Finished(asked.id, at_ms, 1000, 992, 1))
            ledger.apply(ev.Tick(at_ms))
        assert ledger.timing[D].step == STEP

    def test_a_worker_of_which_the_role_changes_is_as_fast_as_before(self) -> None:
        ledger = fleet(spec("d", kv=None, profile="x"), step_priors={"x": STEP})
        at_ms = 0.0
        for number in range(80):  # three times as slow as thought
            asked = request(f"r{number}", 1000)
            ledger.apply(ev.Admitted(asked, at_ms))
            ledger.apply(ev.Dispatched(asked.id, D, at_ms))
            at_ms += 3 * (STEP.a_ms + 1000 * STEP.d_ms_per_prefill_token)
            ledger.apply(ev.FirstToken(asked.id, at_ms))
            ledger.apply(ev.Finished(asked.id, at_ms))
            ledger.apply(ev.Tick(at_ms))
        before = ledger.timing[D].step
        assert before.d_ms_per_prefill_token > 2 * STEP.d_ms_per_prefill_token
        dispatched_before = request("there", 10)
        ledger.apply(ev.Admitted(dispatched_before, at_ms))
        ledger.apply(ev.Dispatched("there", D, at_ms))
        ledger.apply(ev.RoleChanged(D, at_ms, Role.DECODE))
        after = ledger.timing[D].step
        assert after.d_ms_per_prefill_token == pytest.approx(before.d_ms_per_prefill_token, rel=0.01)
        ledger.apply(ev.FirstToken("there", at_ms + 10))
        ledger.apply(ev.Finished("there", at_ms + 20))
        ledger.apply(ev.Tick(at_ms + 1000))


class TestRoles:
    def test_are_in_views_as_stages(self) -> None:
        ledger = fleet()
        assert view_of(ledger).column(Column.STAGES).tolist() == [
            STAGE_PREFILL,
            STAGE_DECODE,
            STAGE_PREFILL + STAGE_DECODE,
        ]
        assert [view_of(ledger).workers[row] for row in view_of(ledger).prefill_rows()] == [P, S]

    def test_change_by_order_and_what_is_there_goes_on(self) -> None:
        ledger = fleet()
        dispatched(ledger)
        ledger.apply(ev.RoleChanged(P, 1.0, Role.DECODE))
        ledger.apply(ev.RoleChanged(D, 1.0, Role.PREFILL))
        assert [view_of(ledger).workers[row] for row in view_of(ledger).eligible_rows()] == [P, S]
        assert ledger.exclusions()[D] is Exclusion.ROLE
        ledger.apply(ev.PrefillEnded("r", 2.0))
        ledger.apply(ev.FirstToken("r", 3.0))
        ledger.apply(ev.Finished("r", 4.0))
        assert [numbers(ledger, one) for one in "pd"] == [REST] * 2
        with pytest.raises(LedgerError, match="not in the fleet"):
            ledger.apply(ev.RoleChanged(worker_id("x"), 5.0, Role.BOTH))

    def test_an_order_holds_until_who_tells_of_the_worker_says_something_else(self) -> None:
        ledger = fleet(spec("d"))
        ledger.apply(ev.RoleChanged(D, 1.0, Role.PREFILL))
        shown = ledger.snapshot().workers[0]
        assert (shown.spec.role, shown.role_ordered) == (Role.PREFILL, True)
        ledger.apply(ev.WorkerChanged(spec("d", models=("m", "other")), 2.0))
        ledger.apply(ev.WorkerJoined(spec("d"), 3.0))
        assert ledger.snapshot().workers[0].spec.role is Role.PREFILL
        ledger.apply(ev.WorkerChanged(spec("d", role=Role.DECODE), 4.0))
        shown = ledger.snapshot().workers[0]
        assert (shown.spec.role, shown.role_ordered) == (Role.DECODE, False)
        ledger.apply(ev.RoleChanged(D, 5.0, Role.BOTH))
        ledger.apply(ev.RoleChanged(D, 6.0, Role.DECODE))
        ledger.apply(ev.WorkerChanged(spec("d", role=Role.BOTH), 7.0))
        assert ledger.snapshot().workers[0].spec.role is Role.BOTH

    def test_workers_for_prefill_are_out_for_a_request_like_others(self) -> None:
        ledger = fleet(spec("p", role=Role.PREFILL, max_in_flight=1), spec("d", max_in_flight=1), spec("s"))
        asked = request("asks")
        assert ledger.view(asked, {P}).prefill_rows().tolist() == [1, 2]
        assert ledger.view(asked, {P}).column(Column.EXCLUSION)[0] == Exclusion.ALREADY_TRIED
        dispatched(ledger)
        view = ledger.view(asked)
        assert view.prefill_rows().tolist() == [2]
        assert view.column(Column.EXCLUSION).tolist() == [Exclusion.AT_CAP, Exclusion.AT_CAP, 0]

    def test_a_request_pinned_to_who_answers_may_have_its_prefill_at_a_worker_for_prefill(self) -> None:
        view = fleet().view(request("asks", pinned_worker=D))
        assert view.prefill_rows().tolist() == [0]
        assert view.eligible_rows().tolist() == [1]

    def test_a_guard_takes_workers_for_prefill_out_among_themselves(self) -> None:
        ledger = fleet(
            spec("p", role=Role.PREFILL, kv_capacity_tokens=100),
            spec("q", role=Role.PREFILL, kv_capacity_tokens=10_000),
            spec("d", kv_capacity_tokens=10_000),
            guards=Guards(kv_headroom=0.1),
        )
        view = ledger.view(request("asks", 200))
        assert view.prefill_rows().tolist() == [1, 2]
        assert not view.guards_lifted
        ledger.apply(ev.WorkerLeft(worker_id("q"), 1.0, "test"))
        view = ledger.view(request("asks", 200))
        assert view.prefill_rows().tolist() == [0, 1]
        assert not view.guards_lifted


def test_rules_of_transfer_are_part_of_the_view_and_change_at_run_time() -> None:
    rules = TransferRules(TransferMode.ALWAYS, 1_000)
    ledger = fleet(transfer=rules)
    assert view_of(ledger).transfer == rules
    off = TransferRules(TransferMode.OFF)
    ledger.apply(ev.RulesChanged(0.0, Guards(), 0.2, HealthSettings(), off))
    assert view_of(ledger).transfer == off
