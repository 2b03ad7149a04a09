from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.cut import cut
from pointsman.core.workload.trace import Trace, TraceRequest
from support.workloads import traces

_TRACE = Trace(
    "n",
    (
        TraceRequest(0, 1, 1, session="a"),
        TraceRequest(1000, 2, 1, session="b"),
        TraceRequest(2000, 3, 1, (7,), session="a", after=0, gap_ms=9),
        TraceRequest(3000, 4, 1, session="b", after=1, gap_ms=9),
        TraceRequest(4000, 5, 1, session="a", after=2, gap_ms=9),
    ),
    16,
)


def test_a_window_counts_from_its_start_and_forgets_what_is_outside() -> None:
    part = cut(_TRACE, from_s=1, to_s=4)
    assert [(r.at_ms, r.prompt_tokens, r.after, r.gap_ms) for r in part.requests] == [
        (0, 2, None, 0),
        (1000, 3, None, 0.0),
        (2000, 4, 0, 9),
    ]
    assert part.block_tokens == 16
    assert cut(_TRACE, from_s=3).block_tokens == 0


def test_sessions_as_a_whole() -> None:
    part = cut(_TRACE, from_s=1, to_s=2, whole_sessions=True)
    assert [(r.at_ms, r.session, r.after) for r in part.requests] == [(0, "b", None), (2000, "b", 0)]
    first = cut(_TRACE, most_requests=1, whole_sessions=True)
    assert [request.session for request in first.requests] == ["a", "a", "a"]


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(TraceError, match="nothing of n is left: it has 5 requests in 4 s"):
        cut(_TRACE, from_s=9)
    with pytest.raises(TraceError, match="nothing lies between 3 s and 2 s"):
        cut(_TRACE, from_s=3, to_s=2)


@given(traces(), st.integers(1, 30))
@settings(max_examples=30, deadline=None)
def test_the_first_requests_are_the_first_requests(trace: Trace, most: int) -> None:
    assert cut(trace, most_requests=most).requests == trace.requests[:most]
    assert cut(trace, to_s=math.inf) == trace
