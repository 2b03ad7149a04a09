"""Requests in the order of time, with what they wait for renumbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import TraceRequest


def in_order(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Sort by `at_ms`; equal times keep their order. `after` is a position in the list as given, and as returned.

    Raises TraceError when a request would come before the one that it waits for.
    """
    order = sorted(range(len(requests)), key=lambda position: requests[position].at_ms)
    place = [0] * len(requests)
    for new, old in enumerate(order):
        place[old] = new
    sorted_requests = []
    for new, old in enumerate(order):
        request = requests[old]
        if request.after is not None:
            if place[request.after] >= new:
                raise TraceError(f"a request at {request.at_ms:g} ms waits for one that does not come before it")
            if request.after != place[request.after]:
                request = replace(request, after=place[request.after])
        sorted_requests.append(request)
    return tuple(sorted_requests)
