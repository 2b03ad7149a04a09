"""What requests failed of at a worker is kept for people, beyond the worker's process."""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.ledger.events import Admitted, AttemptFailed, Dispatched, Failed, Finished, WorkerJoined
from pointsman.core.model.fault import Fault


def test_faults_are_counted_by_kind_and_the_last_is_kept_in_words(make_ledger, make_request) -> None:
    ledger = make_ledger("a", "b")
    ledger.apply(Admitted(make_request("r"), 0.0))
    ledger.apply(Dispatched("r", "a/0", 0.0, 0, False))
    ledger.apply(AttemptFailed("r", 5.0, "it closed the connection", Fault.LOST))
    ledger.apply(Dispatched("r", "b/0", 6.0, 0, False))
    ledger.apply(Failed("r", 9.0, "it answered 500", Fault.SERVER_ERROR))
    one, other = (worker.faults for worker in ledger.snapshot().workers)
    assert (one.counts, one.last, one.reason, one.at_ms) == ({Fault.LOST: 1}, Fault.LOST, "it closed the connection", 5)
    assert (other.counts, other.reason) == ({Fault.SERVER_ERROR: 1}, "it answered 500")


def test_what_is_nobodys_fault_or_the_requests_own_is_not_counted(make_ledger, make_request) -> None:
    ledger = make_ledger("a")
    for request, ending in (("r", Failed("r", 1.0, "no worker")), ("s", Finished("s", 1.0, 1, 0, 1))):
        ledger.apply(Admitted(make_request(request), 0.0))
        ledger.apply(Dispatched(request, "a/0", 0.0, 0, False))
        ledger.apply(ending)
    (worker,) = ledger.snapshot().workers
    assert (worker.faults.counts, worker.faults.last) == ({}, None)


def test_a_new_process_of_the_worker_still_says_what_the_last_one_failed_of(make_ledger, make_request) -> None:
    ledger = make_ledger("a")
    ledger.apply(Admitted(make_request("r"), 0.0))
    ledger.apply(Dispatched("r", "a/0", 0.0, 0, False))
    (worker,) = ledger.snapshot().workers
    ledger.apply(WorkerJoined(replace(worker.spec), 2.0))
    ledger.apply(AttemptFailed("r", 3.0, "gone", Fault.LOST))  # of the process before
    (worker,) = ledger.snapshot().workers
    assert worker.faults.counts == {Fault.LOST: 1}
    assert worker.health.failures_in_row == 0, "it is no fault of the new one"
