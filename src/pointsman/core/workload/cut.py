"""A part of a trace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.trace import Trace, TraceRequest


def cut(
    trace: Trace,
    *,
    from_s: float = 0.0,
    to_s: float = math.inf,
    most_requests: int | None = None,
    whole_sessions: bool = False,
) -> Trace:
    """Requests that arrive from `from_s` on and before `to_s` of the trace, at most `most_requests` of them, whose
    times then count from `from_s`.

    With `whole_sessions` a session is kept as a whole when its first request is, and not at all otherwise. Without, a
    request whose predecessor is cut away comes at its own time. Raises TraceError when nothing is left.
    """
    if not 0 <= from_s < to_s:
        raise TraceError(f"nothing lies between {from_s:g} s and {to_s:g} s")
    from_ms, to_ms = from_s * 1000.0, to_s * 1000.0
    kept: list[int] = []
    sessions: dict[str, bool] = {}
    for position, request in enumerate(trace.requests):
        starts = from_ms <= request.at_ms < to_ms and (most_requests is None or len(kept) < most_requests)
        if whole_sessions and request.session is not None:
            starts = sessions.setdefault(request.session, starts)
        if starts:
            kept.append(position)
    return kept_only(trace, kept, from_ms)


def kept_only(trace: Trace, positions: Iterable[int], start_ms: float = 0.0) -> Trace:
    """The requests at these positions, which go up; times then count from `start_ms`. Raises TraceError for none."""
    places: dict[int, int] = {}
    requests: list[TraceRequest] = []
    for position in positions:
        request = trace.requests[position]
        after = None if request.after is None else places.get(request.after)
        places[position] = len(requests)
        gap_ms = request.gap_ms if after is not None or request.after is None else 0.0
        requests.append(replace(request, at_ms=request.at_ms - start_ms, after=after, gap_ms=gap_ms))
    if not requests:
        raise TraceError(f"nothing of {trace.name} is left: it has {len(trace)} requests in {_span(trace)}")
    blocks = trace.block_tokens if any(request.block_ids for request in requests) else 0
    return replace(trace, requests=tuple(requests), block_tokens=blocks)


def _span(trace: Trace) -> str:
    return f"{trace.requests[-1].at_ms / 1000.0:g} s" if trace.requests else "no time"
