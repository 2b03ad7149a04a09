from __future__ import annotations

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.retry_budget import ALWAYS_PER_S, MOST_SAVED, SAVED_AT_START, RetryBudget
from pointsman.core.model.fault import Fault
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerSpec, worker_id


def spend(budget: RetryBudget, at_ms: float) -> int:
    """Retries until there are none left."""
    spent = 0
    while budget.left(at_ms):
        budget.take(at_ms)
        spent += 1
    return spent


def test_a_few_retries_are_there_before_any_request() -> None:
    budget = RetryBudget(0.2)
    assert spend(budget, 0.0) == SAVED_AT_START
    assert not budget.left(0.0)


def test_what_is_free_comes_with_time_up_to_a_bound() -> None:
    budget = RetryBudget(0.2)
    spend(budget, 0.0)
    assert spend(budget, 1000.0) == ALWAYS_PER_S
    assert spend(budget, 1_000_000.0) == SAVED_AT_START


def test_each_request_adds_its_share_up_to_a_bound() -> None:
    budget = RetryBudget(0.25)
    spend(budget, 0.0)
    for _ in range(40):
        budget.came()
    assert spend(budget, 0.0) == 10
    for _ in range(100_000):
        budget.came()
    assert spend(budget, 0.0) == MOST_SAVED


def test_a_share_of_zero_allows_none_ever() -> None:
    budget = RetryBudget(0.0)
    budget.came()
    assert spend(budget, 1e9) == 0


def test_the_ledger_takes_one_for_each_attempt_without_a_first_token() -> None:
    ledger = Ledger(retry_share=0.0)
    assert not ledger.may_retry(0.0)
    ledger = Ledger(retry_share=0.25)
    spec = WorkerSpec(worker_id("a"), "http://a", "vllm", ("m",))
    ledger.apply(ev.WorkerJoined(spec, 0.0))
    for number in range(133):  # 100 at the start; each takes one and adds a quarter
        assert ledger.may_retry(0.0), number
        request = Request(str(number), "m", 0.0, 10)
        ledger.apply(ev.Admitted(request, 0.0))
        ledger.apply(ev.Dispatched(request.id, spec.id, 0.0))
        ledger.apply(ev.AttemptFailed(request.id, 0.0, "test", Fault.LOST))
    assert not ledger.may_retry(0.0)


def test_a_stream_that_goes_on_elsewhere_takes_none() -> None:
    ledger = Ledger()
    spec = WorkerSpec(worker_id("a"), "http://a", "vllm", ("m",))
    ledger.apply(ev.WorkerJoined(spec, 0.0))
    ledger.apply(ev.Admitted(Request("r", "m", 0.0, 10), 0.0))
    for _ in range(1000):
        ledger.apply(ev.Dispatched("r", spec.id, 0.0))
        ledger.apply(ev.FirstToken("r", 0.0))
        ledger.apply(ev.AttemptFailed("r", 0.0, "test", Fault.LOST))
    assert ledger.may_retry(0.0)


def test_what_drains_takes_none_of_it() -> None:
    """A worker that drains gives all that waits there away, and leaves the retries for those that fail."""
    ledger = Ledger(retry_share=0.2)
    spec = WorkerSpec(worker_id("a"), "http://a", "vllm", ("m",))
    ledger.apply(ev.WorkerJoined(spec, 0.0))
    for number in range(1000):
        ledger.apply(ev.Admitted(Request(str(number), "m", 0.0, 10), 0.0))
        ledger.apply(ev.Dispatched(str(number), spec.id, 0.0))
        ledger.apply(ev.AttemptFailed(str(number), 0.0, "its engine drains"))
    assert ledger.may_retry(0.0)


def test_switched_off_while_some_are_saved_up() -> None:
    budget = RetryBudget(0.2)
    budget.share = 0.0
    assert spend(budget, 1e9) == 0
