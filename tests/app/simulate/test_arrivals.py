"""When requests come."""

from __future__ import annotations

import pytest

from pointsman.app.simulate.arrivals import AFTER_REJECTION_MS, Arrivals
from pointsman.core.model.errors import ConfigError
from pointsman.core.workload.trace import Trace, TraceRequest


def trace(*requests: tuple[float, int | None, float]) -> Trace:
    """(at_ms, after, gap_ms)"""
    return Trace("t", [TraceRequest(at, 10, 10, after=after, gap_ms=gap) for at, after, gap in requests])


TWO_SESSIONS = trace((5, None, 0), (6, None, 0), (50, 0, 30), (60, 1, 7), (90, 2, 1))


def test_open_loop_followers_wait_for_the_answer() -> None:
    arrivals = Arrivals(TWO_SESSIONS)
    assert arrivals.start_ms == 5
    assert list(arrivals.first()) == [(5, 0), (6, 1)]
    assert arrivals.ended(1, 100, answered=True) == [(107, 3)]
    assert arrivals.ended(0, 200, answered=False) == [(230, 2)]
    assert arrivals.ended(2, 300, answered=True) == [(301, 4)]
    assert arrivals.ended(3, 300, answered=True) == []
    assert arrivals.ended(4, 300, answered=True) == []


def test_recorded_times_wait_for_nobody() -> None:
    arrivals = Arrivals(TWO_SESSIONS, recorded_times=True)
    assert list(arrivals.first()) == [(5, 0), (6, 1), (50, 2), (60, 3), (90, 4)]
    assert arrivals.ended(0, 200, answered=True) == []


def test_clients_take_whole_sessions_one_after_the_other() -> None:
    arrivals = Arrivals(trace((5, None, 0), (6, None, 0), (7, 0, 30), (8, None, 0)), clients=1)
    assert arrivals.start_ms == 0
    assert list(arrivals.first()) == [(0, 0)]
    assert arrivals.ended(0, 10, answered=True) == [(40, 2)]
    assert arrivals.ended(2, 50, answered=True) == [(50, 1)]
    assert arrivals.ended(1, 60, answered=False) == [(60 + AFTER_REJECTION_MS, 3)]
    assert arrivals.ended(3, 70, answered=True) == []


def test_a_session_that_branches_is_over_when_all_of_it_is() -> None:
    arrivals = Arrivals(trace((0, None, 0), (1, 0, 5), (2, 0, 6), (3, None, 0)), clients=1)
    assert list(arrivals.first()) == [(0, 0)]
    assert arrivals.ended(0, 10, answered=True) == [(15, 1), (16, 2)]
    assert arrivals.ended(2, 20, answered=True) == []
    assert arrivals.ended(1, 30, answered=True) == [(30, 3)]


def test_more_clients_than_requests() -> None:
    assert list(Arrivals(TWO_SESSIONS, clients=9).first()) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(("clients", "recorded"), [(0, False), (-1, False), (2, True)])
def test_what_can_not_be(clients: int, recorded: bool) -> None:
    with pytest.raises(ConfigError, match="clients"):
        Arrivals(TWO_SESSIONS, clients=clients, recorded_times=recorded)


def test_a_trace_without_requests() -> None:
    arrivals = Arrivals(Trace("empty", []))
    assert (arrivals.start_ms, list(arrivals.first())) == (0, [])
