from __future__ import annotations

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.ordering import in_order
from pointsman.core.workload.trace import Trace, TraceRequest


def test_what_requests_wait_for_is_renumbered() -> None:
    requests = [
        TraceRequest(10, 1, 1, session="a"),
        TraceRequest(30, 1, 1, session="a", after=0),
        TraceRequest(5, 1, 1, session="b"),
        TraceRequest(30, 1, 1, session="b", after=2),
    ]
    ordered = in_order(requests)
    assert [(request.session, request.after) for request in ordered] == [("b", None), ("a", None), ("a", 1), ("b", 0)]
    Trace("n", ordered)


def test_a_request_cannot_come_before_the_one_it_waits_for() -> None:
    with pytest.raises(TraceError, match="a request at 3 ms waits for one that does not come before it"):
        in_order([TraceRequest(4, 1, 1), TraceRequest(3, 1, 1, after=0)])
