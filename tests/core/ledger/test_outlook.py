"""What the ledger tells policies of a request's future: its length, its adapter, who is new."""

from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id

A, B = worker_id("a"), worker_id("b")


def join(ledger: Ledger, name: str, at_ms: float = 0.0, **more) -> None:
    spec = WorkerSpec(worker_id(name), f"http://{name}", "vllm", ("m", "lora"), adapters=("lora",), **more)
    ledger.apply(ev.WorkerJoined(spec, at_ms))
    ledger.apply(ev.HealthRead(spec.id, at_ms, True, True, "answers"))


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    join(ledger, "a")
    join(ledger, "b")
    return ledger


def send(ledger: Ledger, request: Request, worker: WorkerId = A, at_ms: float = 0.0) -> None:
    ledger.apply(ev.Admitted(request, at_ms))
    ledger.apply(ev.Dispatched(request.id, worker, at_ms))


def answer(ledger: Ledger, request_id: str, tokens: int, at_ms: float = 1.0) -> None:
    ledger.apply(ev.FirstToken(request_id, at_ms))
    ledger.apply(ev.Progress(request_id, at_ms, tokens))
    ledger.apply(ev.Finished(request_id, at_ms, 10, 0, tokens))


def remaining(ledger: Ledger) -> list[int]:
    return ledger.view(Request("asks", "m", 0.0, 1)).column(Column.REMAINING_TOKENS).tolist()


def missing(ledger: Ledger) -> list[int]:
    return ledger.view(Request("asks", "lora", 0.0, 1)).column(Column.ADAPTER_MISSING).tolist()


def test_lengths_are_learned_from_answers_to_their_end(ledger) -> None:
    for number in range(100):
        send(ledger, Request(f"r{number}", "m", 0.0, 10, api="chat", sequences=2))
        answer(ledger, f"r{number}", 80)
    view = ledger.view(Request("asks", "m", 0.0, 1, api="chat"))
    assert view.outlook.output_tokens == pytest.approx(40, rel=0.4)
    assert view.outlook.answers_seen > 80
    limited = ledger.view(Request("asks", "m", 0.0, 1, api="chat", max_output_tokens=5))
    assert limited.outlook.output_tokens == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize("how", [ev.Cancelled("r", 9.0), ev.Failed("r", 9.0, "test")])
def test_answers_that_broke_off_teach_nothing(ledger, how) -> None:
    send(ledger, Request("r", "m", 0.0, 10))
    ledger.apply(ev.FirstToken("r", 1.0))
    ledger.apply(ev.Progress("r", 2.0, 3))
    ledger.apply(how)
    assert ledger.view(Request("asks", "m", 0.0, 1)).outlook.answers_seen == 0


def test_answers_cut_off_by_a_limit_or_the_context_do_not_look_short() -> None:
    ledger = Ledger()
    join(ledger, "a", max_context_tokens=100)
    for number in range(50):
        send(ledger, Request(f"cap{number}", "m", 0.0, 10, max_output_tokens=20))
        answer(ledger, f"cap{number}", 20)
        send(ledger, Request(f"context{number}", "m", 0.0, 90))
        answer(ledger, f"context{number}", 90)
    assert ledger.view(Request("asks", "m", 0.0, 1)).outlook.output_tokens > 200


def test_what_is_to_come_is_kept_at_the_worker(ledger) -> None:
    for number in range(300):
        send(ledger, Request(f"r{number}", "m", 0.0, 10))
        answer(ledger, f"r{number}", 100)
    assert remaining(ledger) == [0, 0]
    send(ledger, Request("now", "m", 0.0, 10, sequences=3))
    assert remaining(ledger)[0] == pytest.approx(300, rel=0.1)
    ledger.apply(ev.FirstToken("now", 2.0))
    ledger.apply(ev.Progress("now", 3.0, 150))
    assert remaining(ledger)[0] == pytest.approx(150, rel=0.1)
    ledger.apply(ev.Progress("now", 4.0, 350))
    assert remaining(ledger)[0] > 100  # it outlived what was expected, and goes on
    ledger.apply(ev.Finished("now", 5.0, 10, 0, 500))
    assert remaining(ledger) == [0, 0]


def test_workers_for_prefill_are_expected_to_generate_nothing() -> None:
    ledger = Ledger()
    join(ledger, "p", role=Role.PREFILL)
    send(ledger, Request("r", "m", 0.0, 10), worker_id("p"))
    assert remaining(ledger) == [0]
    answer(ledger, "r", 1)
    assert ledger.view(Request("asks", "m", 0.0, 1)).outlook.answers_seen == 0


def test_an_adapter_is_there_once_a_request_for_it_was_sent(ledger) -> None:
    assert missing(ledger) == [1, 1]
    send(ledger, Request("r", "lora", 0.0, 10))
    assert missing(ledger) == [0, 1]
    assert ledger.view(Request("asks", "m", 0.0, 1)).column(Column.ADAPTER_MISSING).tolist() == [0, 0]
    ledger.apply(ev.AttemptFailed("r", 1.0, "refused", Fault.UNREACHABLE))
    assert missing(ledger) == [1, 1]


def test_the_engine_tells_its_adapters_and_only_so_many_fit(ledger) -> None:
    ledger.apply(ev.MetricsRead(B, 0.0, 1, 0, resident_adapters=frozenset({"lora"}), most_adapters=1))
    assert missing(ledger) == [1, 0]
    # It rests there while nobody uses it, until another one takes its place.
    ledger.apply(ev.MetricsRead(B, 1.0, 0, 0, resident_adapters=frozenset(), most_adapters=1))
    assert missing(ledger) == [1, 0]
    ledger.apply(ev.MetricsRead(B, 2.0, 1, 0, resident_adapters=frozenset({"other"}), most_adapters=1))
    assert missing(ledger) == [1, 1]


def test_the_time_of_a_load_is_learned_and_bounded(ledger) -> None:
    def load_ms() -> float:
        return ledger.view(Request("asks", "lora", 0.0, 1)).outlook.adapter_load_ms

    assert load_ms() == 100
    for number in range(60):
        # Each time the adapter was pushed out before.
        ledger.apply(ev.MetricsRead(A, 0.0, 1, 0, resident_adapters=frozenset({"other"}), most_adapters=1))
        for late_ms in (850.0, 50.0):
            request = Request(f"{number} {late_ms}", "lora", 0.0, 10)
            send(ledger, request)
            answer(ledger, request.id, 10, late_ms)
    assert load_ms() == pytest.approx(800, rel=0.1)


def test_who_became_usable_later_is_new_and_so_is_who_came_back(ledger) -> None:
    def joined() -> list[int]:
        return ledger.view(Request("asks", "m", 0.0, 1)).column(Column.JOINED_MS).tolist()

    assert joined() == [-1, -1]
    join(ledger, "late", 60_000.0)
    assert joined() == [-1, -1, 60_000]
    ledger.apply(ev.HealthRead(worker_id("late"), 65_000.0, True, True, "answers"))
    assert joined() == [-1, -1, 60_000]
    for at_ms in (70_000.0, 71_000.0):
        ledger.apply(ev.HealthRead(A, at_ms, False, False, "no answer"))
    assert joined() == [-1, -1, 60_000]
    ledger.apply(ev.HealthRead(A, 80_000.0, True, True, "answers"))
    assert joined() == [80_000, -1, 60_000]
