"""Searches: what matches, in which order, how many; and parameters that can't be."""

from __future__ import annotations

import pytest

from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.search import DEFAULT_LIMIT, MOST_LIMIT, Query, QueryError, search
from support.decisions import decided, ended, request


def records() -> list[DecisionRecord]:
    """Youngest first: r9 runs, r8 failed without a token, the others finished."""
    made = []
    for number in range(8):
        asked = request(
            f"r{number}", arrival_ms=1000.0 * number, tenant=f"t{number % 2}", model="m" if number else "other"
        )
        record = decided(asked, "kv" if number % 3 else "round_robin")
        record.arm = "trial" if number == 5 else "base"
        made.append(ended(record, ttft_ms=10.0 * (number + 1), decode_ms=490.0 - 49 * number))
    failed = ended(decided(request("r8", arrival_ms=8000.0)), ttft_ms=None, status="failed", http=502)
    running = decided(request("r9", arrival_ms=9000.0))
    return [running, failed, *reversed(made)]


def ids(*params: tuple[str, str]) -> list[str]:
    found, _ = search(records(), Query.of(params, now_ms=1e12 + 10_000))
    return [record.request.id for record in found]


def test_without_parameters_the_youngest_come_first() -> None:
    assert ids() == [f"r{number}" for number in range(9, -1, -1)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ([("last", "2")], ["r9", "r8"]),
        ([("status", "running")], ["r9"]),
        ([("status", "failed")], ["r8"]),
        ([("tenant", "t1")], ["r7", "r5", "r3", "r1"]),
        ([("tenant", "t1"), ("last", "1")], ["r7"]),
        ([("model", "other")], ["r0"]),
        ([("policy", "round_robin")], ["r6", "r3", "r0"]),
        ([("arm", "trial")], ["r5"]),
        ([("since", "2s")], ["r9", "r8"]),
        ([("since", str(1e12 + 8500))], ["r9"]),
        ([("worst", "ttft"), ("limit", "3")], ["r7", "r6", "r5"]),
        ([("worst", "itl"), ("limit", "2")], ["r0", "r1"]),
        ([("worst", "e2e"), ("limit", "2")], ["r0", "r1"]),
        ([("worst", "ttft"), ("last", "4")], ["r7", "r6"]),
        ([("worst", "ttft"), ("status", "failed")], []),
        ([("worker", "nobody/0")], []),
        ([("limit", "1")], ["r9"]),
    ],
)
def test_what_is_found(params: list[tuple[str, str]], expected: list[str]) -> None:
    assert ids(*params) == expected


def test_the_worst_error_is_the_farthest_from_what_was_predicted() -> None:
    everything = records()
    known = sum(record.error_ms is not None for record in everything)
    found, matched = search(everything, Query.of([("worst", "error")]))
    errors = [record.error_ms for record in found]
    assert matched == 10
    assert 3 <= len(errors) == known < 10
    assert errors == sorted(errors, reverse=True)  # type: ignore[type-var]
    assert errors[0] == abs((found[0].ttft_ms or 0) - (found[0].predicted_ttft_ms or 0)) > 0


def test_equal_ones_come_youngest_first() -> None:
    same = [ended(decided(request(f"r{number}")), ttft_ms=5.0) for number in range(5)]
    found, _ = search(same, Query.of([("worst", "ttft"), ("limit", "2")]))
    assert [record.request.id for record in found] == ["r0", "r1"]


def test_each_worker_has_those_that_it_got() -> None:
    everything = records()
    for worker in {record.decision.worker for record in everything if record.decision}:
        found, matched = search(everything, Query.of([("worker", str(worker))]))
        assert matched == len(found) > 0
        assert all(record.decision is not None and record.decision.worker == worker for record in found)


def test_limits() -> None:
    assert Query.of([]).limit == DEFAULT_LIMIT
    assert Query.of([("last", "7")]).limit == 7
    assert Query.of([("last", "5000")]).limit == MOST_LIMIT
    assert Query.of([("last", "7"), ("worst", "ttft")]).limit == DEFAULT_LIMIT
    assert Query.of([("last", "7"), ("limit", "3")]).limit == 3


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([("lats", "3")], "lats: unknown parameter; known: last, worst, limit, worker"),
        ([("last", "3"), ("last", "4")], "last: given twice"),
        ([("last", "0")], "last: expected a number from 1 to 1000000000, not '0'"),
        ([("last", "-1")], "last: expected a number"),
        ([("last", "")], "last: expected a number"),
        ([("last", "9" * 5000)], "last: expected a number"),
        ([("last", "²")], "last: expected a number"),
        ([("limit", "1001")], "limit: expected a number from 1 to 1000, not '1001'"),
        ([("worst", "tftt")], "worst: expected one of ttft, itl, e2e, error, not 'tftt'"),
        ([("status", "ok")], "status: expected one of running, finished, refused, failed, cancelled, not 'ok'"),
        ([("since", "yesterday")], "since: expected ms since 1970, or how long ago, such as 10m; not 'yesterday'"),
        ([("since", ".")], "since: expected"),
        ([("since", "²")], "since: expected"),
        ([("since", "inf")], "since: expected"),
        ([("since", "10")], "since: expected ms since 1970, or how long ago, such as 10m; not '10'"),
        ([("since", "1796070836")], "since: expected"),  # seconds
    ],
)
def test_bad_parameters_are_named(params: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(QueryError) as caught:
        Query.of(params)
    assert str(caught.value).startswith(message)
    assert caught.value.param == params[-1][0]
