from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import LedgerError
from pointsman.core.model.fault import Fault
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id

A, B = worker_id("a"), worker_id("b")
TEXT = b"0123456789abcdef" * 8


def send(ledger: Ledger, request, worker: WorkerId, at_ms: float = 0.0) -> None:
    ledger.apply(ev.Admitted(request, at_ms))
    ledger.apply(ev.Dispatched(request.id, worker, at_ms))


def answer(ledger: Ledger, request_id: str, at_ms: float = 1.0, **usage: int) -> None:
    ledger.apply(ev.FirstToken(request_id, at_ms))
    ledger.apply(ev.Finished(request_id, at_ms, **usage))


def exclusion(ledger: Ledger, request, worker: WorkerId) -> Exclusion:
    view = ledger.view(request)
    return Exclusion(int(view.column(Column.EXCLUSION)[view.workers.index(worker)]))


class TestEventsThatCantFollow:
    def test_a_second_admission_of_an_id(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Admitted(make_request("r"), 0))
        with pytest.raises(LedgerError, match="admitted already"):
            ledger.apply(ev.Admitted(make_request("r"), 0))
        assert ledger.in_flight == 1

    def test_a_second_ending(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r"), A)
        answer(ledger, "r")
        with pytest.raises(LedgerError, match="ended already"):
            ledger.apply(ev.Cancelled("r", 2))
        assert ledger.snapshot().totals.cancelled == 0

    def test_two_dispatches_without_a_failed_attempt(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        send(ledger, make_request("r"), A)
        with pytest.raises(LedgerError, match="at a/0 already"):
            ledger.apply(ev.Dispatched("r", B, 1))
        assert [w.running for w in ledger.snapshot().workers] == [1, 0]

    def test_a_dispatch_to_a_stranger_changes_nothing(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Admitted(make_request("r"), 0))
        with pytest.raises(LedgerError, match="x/0 is not in the fleet"):
            ledger.apply(ev.Dispatched("r", worker_id("x"), 0))
        assert ledger.waiting == 1

    def test_tokens_before_dispatch_and_first_token_twice(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Admitted(make_request("r"), 0))
        with pytest.raises(LedgerError, match="not at a worker"):
            ledger.apply(ev.FirstToken("r", 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        ledger.apply(ev.FirstToken("r", 0))
        with pytest.raises(LedgerError, match="first token already"):
            ledger.apply(ev.FirstToken("r", 0))


class TestCapture:
    def test_a_worker_that_left_and_came_back_has_counters_of_its_own(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("old", TEXT), A)
        ledger.apply(ev.WorkerLeft(A, 1, "restart"))
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 2))
        send(ledger, make_request("new", TEXT), A)
        answer(ledger, "old")
        (worker,) = ledger.snapshot().workers
        assert (worker.running, worker.totals.finished) == (1, 0)
        answer(ledger, "new")
        (worker,) = ledger.snapshot().workers
        assert (worker.running, worker.totals.finished) == (0, 1)
        assert ledger.snapshot().totals.finished == 2

    def test_slots_are_used_again_but_not_while_a_request_is_out(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("out"), A)
        for _ in range(100):
            ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 0))
        assert ledger._fleet.table.cells.shape[1] == 16
        answer(ledger, "out")
        assert ledger.snapshot().workers[0].running == 0

    def test_a_thousand_workers(self, make_ledger, make_request) -> None:
        ledger = make_ledger(*(f"e{i}" for i in range(1000)))
        assert len(ledger.view(make_request()).eligible_rows()) == 1000


class TestExclusions:
    def test_a_worker_gets_nothing_before_its_first_probe(self, make_ledger, make_request) -> None:
        assert exclusion(make_ledger("a", ready=False), make_request(), A) is Exclusion.NOT_PROBED

    def test_one_lost_probe_says_nothing_two_do(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.HealthRead(A, 20_000, False, False, "timed out"))
        assert exclusion(ledger, make_request(), A) is Exclusion.NONE
        ledger.apply(ev.HealthRead(A, 25_000, False, False, "timed out"))
        assert exclusion(ledger, make_request(), A) is Exclusion.UNREACHABLE
        assert ledger.snapshot().workers[0].reason == "timed out"

    def test_tokens_that_flow_outweigh_lost_probes(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r"), A)
        ledger.apply(ev.FirstToken("r", 19_000))
        for at_ms in (20_000, 25_000, 28_000):
            ledger.apply(ev.HealthRead(A, at_ms, False, False, "timed out"))
            assert exclusion(ledger, make_request(), A) is Exclusion.NONE
        ledger.apply(ev.HealthRead(A, 30_000, False, False, "timed out"))
        assert exclusion(ledger, make_request(), A) is Exclusion.UNREACHABLE

    def test_not_ready_counts_at_once_and_ready_brings_it_back(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.HealthRead(A, 1, True, False, "503"))
        assert exclusion(ledger, make_request(), A) is Exclusion.NOT_READY
        ledger.apply(ev.HealthRead(A, 2, True, True, "answers"))
        assert exclusion(ledger, make_request(), A) is Exclusion.NONE

    def test_a_refused_connection_counts_at_once_and_empties_the_cache(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        send(ledger, make_request("warm", TEXT), A)
        answer(ledger, "warm")
        send(ledger, make_request("r", TEXT), A)
        ledger.apply(ev.AttemptFailed("r", 2, "refused", Fault.UNREACHABLE))
        assert exclusion(ledger, make_request(), A) is Exclusion.UNREACHABLE
        assert ledger.snapshot().text_blocks == 0
        assert ledger.waiting == 1

    def test_draining_and_prefill_only(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.WorkerDraining(A, 1, "asked to"))
        assert exclusion(ledger, make_request(), A) is Exclusion.DRAINING
        assert exclusion(make_ledger("b", role=Role.PREFILL), make_request(), B) is Exclusion.ROLE

    def test_workers_take_the_stages_of_their_role(self, make_ledger, make_request) -> None:
        ledger = make_ledger("both")
        for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
            spec = WorkerSpec(worker_id(name), "http://e", "vllm", ("m",), role=role)
            ledger.apply(ev.WorkerJoined(spec, 0))
            ledger.apply(ev.HealthRead(spec.id, 0, True, True, "answers"))
        view = ledger.view(make_request())
        assert [view.workers[row] for row in view.eligible_rows()] == ["both/0", "d/0"]
        assert [view.workers[row] for row in view.prefill_rows()] == ["both/0", "p/0"]
        ledger.apply(ev.WorkerDraining(worker_id("p"), 1, "old"))
        view = ledger.view(make_request())
        assert [view.workers[row] for row in view.prefill_rows()] == ["both/0"]
        assert view.column(Column.EXCLUSION).tolist() == [Exclusion.NONE, Exclusion.DRAINING, Exclusion.NONE]

    def test_pinned_tried_and_full(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b", queue_depth_threshold=2)
        assert exclusion(ledger, make_request(pinned_worker=A), B) is Exclusion.PINNED_ELSEWHERE
        view = ledger.view(make_request(), tried={A})
        assert view.column(Column.EXCLUSION).tolist() == [Exclusion.ALREADY_TRIED, 0]
        ledger.apply(ev.MetricsRead(A, 1, running=5, waiting=2))
        assert exclusion(ledger, make_request(), A) is Exclusion.QUEUE_FULL

    def test_an_estimated_length_excludes_nobody(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", max_context_tokens=10)
        assert exclusion(ledger, make_request(prompt_tokens=1000), A) is Exclusion.NONE

    def test_a_reason_of_the_worker_is_not_hidden_by_one_of_the_request(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", ready=False)
        view = ledger.view(make_request(), tried={A})
        assert view.column(Column.EXCLUSION).tolist() == [Exclusion.NOT_PROBED]


class TestCachedTokens:
    def test_what_was_routed_counts_at_once_and_never_the_whole_prompt(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        send(ledger, make_request("r", TEXT), A)
        view = ledger.view(make_request("s", TEXT))
        assert view.column(Column.CACHED_TOKENS).tolist() == [len(TEXT) // 4 - 1, 0]

    def test_a_prompt_that_failed_before_its_first_token_does_not_count(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r", TEXT), A)
        ledger.apply(ev.Failed("r", 1, "broke"))
        assert ledger.view(make_request("s", TEXT)).column(Column.CACHED_TOKENS).tolist() == [0]

    def test_a_prompt_that_was_refused_does_not_count_and_nobody_failed(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r", TEXT), A)
        ledger.apply(ev.Refused("r", 1, 400))
        assert ledger.view(make_request("s", TEXT)).column(Column.CACHED_TOKENS).tolist() == [0]
        totals = ledger.snapshot().workers[0].totals
        assert (totals.refused, totals.failed, totals.finished) == (1, 0, 0)

    def test_other_models_and_lost_workers_share_nothing(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", models=("m", "other"))
        send(ledger, make_request("r", TEXT), A)
        assert ledger.view(make_request("s", TEXT, "other")).column(Column.CACHED_TOKENS).tolist() == [0]
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 1))
        assert ledger.view(make_request("s", TEXT)).column(Column.CACHED_TOKENS).tolist() == [0]

    def test_time_to_live(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", prefix_ttl_ms=100.0)
        send(ledger, make_request("r", TEXT), A, at_ms=0)
        ledger.apply(ev.Tick(100))
        assert ledger.snapshot().text_blocks == 8
        ledger.apply(ev.Tick(101))
        assert ledger.snapshot().text_blocks == 0

    def test_the_engines_kv_capacity_bounds_the_index(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.MetricsRead(A, 0, 0, 0, 0.0, kv_capacity_tokens=8))
        send(ledger, make_request("r", TEXT), A)
        assert ledger.snapshot().text_blocks == 8 * 4 // 16

    def test_bytes_a_token_are_learned_from_usage(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        assert ledger.tokens_of_bytes("m", 400) == 100
        for i in range(5):
            send(ledger, make_request(f"r{i}", b"x" * 600), A)
            answer(ledger, f"r{i}", prompt_tokens=100)
        assert ledger.bytes_per_token("m") == pytest.approx(6.0)
        assert ledger.tokens_of_bytes("m", 600) == 100


class TestForeignLoad:
    def test_our_own_sequences_are_not_foreign(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r", sequences=64), A)
        for at_ms in (0, 5):
            ledger.apply(ev.MetricsRead(A, at_ms, running=60, waiting=4))
        assert ledger.snapshot().workers[0].foreign == 0
        assert ledger.view(make_request()).load.tolist() == [64]
        answer(ledger, "r")
        assert ledger.view(make_request()).load.tolist() == [0]

    def test_old_readings_are_not_believed_for_ever(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        for at_ms in (0, 5):
            ledger.apply(ev.MetricsRead(A, at_ms, running=4, waiting=2, kv_use=0.5, kv_capacity_tokens=1000))
        ledger.apply(ev.Tick(30_005))
        assert ledger.view(make_request()).column(Column.KV_USED_TOKENS).tolist() == [500]
        assert (ledger.snapshot().workers[0].foreign, ledger.snapshot().workers[0].queued) == (6, 2)
        ledger.apply(ev.Tick(30_006))
        worker = ledger.snapshot().workers[0]
        assert (worker.foreign, worker.queued, worker.kv_use) == (0, 0, None)
        assert ledger.view(make_request()).column(Column.KV_USED_TOKENS).tolist() == [0]

    def test_of_an_engine_that_is_gone_the_last_reading_is_not_shown(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.MetricsRead(A, 0, running=4, waiting=2, kv_use=0.5, kv_capacity_tokens=1000))
        ledger.apply(ev.GpuRead(A, 0, 0.95, 0.8))
        worker = ledger.snapshot().workers[0]
        assert (worker.kv_use, worker.gpu_use, worker.gpu_memory) == (0.5, 0.95, 0.8)
        for at_ms in (20_000, 25_000):
            ledger.apply(ev.HealthRead(A, at_ms, False, False, "timed out"))
        worker = ledger.snapshot().workers[0]
        assert (worker.kv_use, worker.gpu_use, worker.gpu_memory) == (None, None, None)

    def test_only_what_two_readings_agree_on_counts(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        send(ledger, make_request("r"), A)
        ledger.apply(ev.MetricsRead(A, 0, running=1, waiting=0))
        ledger.apply(ev.MetricsRead(A, 5, running=4, waiting=2))
        assert ledger.snapshot().workers[0].foreign == 0
        ledger.apply(ev.MetricsRead(A, 10, running=3, waiting=0))
        assert ledger.snapshot().workers[0].foreign == 2
        assert ledger.view(make_request()).load.tolist() == [3]


def test_a_worker_that_tells_more_of_itself_keeps_its_cache_and_requests(make_ledger, make_request) -> None:
    ledger = make_ledger("a")
    send(ledger, make_request("r", TEXT), A)
    ledger.apply(ev.WorkerChanged(WorkerSpec(A, "http://a", "vllm", ("m", "adapter"), max_context_tokens=99), 1))
    assert ledger.models() == {"m": (A,), "adapter": (A,)}
    view = ledger.view(make_request("s", TEXT))
    assert view.column(Column.CACHED_TOKENS).tolist() == [len(TEXT) // 4 - 1]
    assert (view.load.tolist(), view.column(Column.CONTEXT_TOKENS).tolist()) == ([1], [99])
    assert exclusion(ledger, make_request(), A) is Exclusion.NONE


def test_models_and_contexts(make_ledger) -> None:
    ledger = make_ledger("a", "b", models=("m", "lora"))
    assert ledger.models() == {"m": (A, B), "lora": (A, B)}
    assert ledger.serves("lora")
    assert not ledger.serves("x")
    assert ledger.context_tokens("m") is None
    ledger.apply(ev.WorkerJoined(WorkerSpec(B, "http://b", "vllm", ("m",), max_context_tokens=4096), 0))
    assert ledger.context_tokens("m") == 4096
    assert ledger.models()["lora"] == (A,)


def test_reported_and_predicted_cached_tokens_are_summed_where_both_are_known(make_ledger, make_request) -> None:
    ledger = make_ledger("a")
    ledger.apply(ev.Admitted(make_request("r", TEXT), 0))
    ledger.apply(ev.Dispatched("r", A, 0, cached_tokens=20))
    answer(ledger, "r", prompt_tokens=40, cached_tokens=16, output_tokens=7)
    send(ledger, make_request("s", TEXT), A)
    answer(ledger, "s", prompt_tokens=40, output_tokens=7)
    totals = ledger.snapshot().workers[0].totals
    assert (totals.predicted_cached_tokens, totals.reported_cached_tokens, totals.reported_prompt_tokens) == (
        20,
        16,
        40,
    )
    assert (totals.prompt_tokens, totals.output_tokens) == (80, 14)
