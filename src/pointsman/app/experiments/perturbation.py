"""Perturbation: the same traffic as it might have come another day, alike for every policy.

Each seed moves every conversation a little in time, as a whole: its turns keep their distances, the rate stays, and so
do bursts that are longer than the shift.
"""

from __future__ import annotations

import random
from dataclasses import replace

from pointsman.core.workload.ordering import in_order
from pointsman.core.workload.trace import Trace

SHIFT_GAPS = 3.0
"""Conversations move by up to so many mean gaps between them, earlier or later."""


def perturbed(trace: Trace, seed: int, shift_gaps: float = SHIFT_GAPS) -> Trace:
    """The trace with each conversation moved by chance; the same for the same seed.

    A conversation is the requests of one `session` and tenant, or those that wait for each other's answers; a request
    that has neither moves by itself. The first one comes when the trace's first does.
    """
    if len(trace) < 2:
        return trace
    groups = _groups(trace)
    most_ms = shift_gaps * trace.duration_ms / max(groups) if max(groups) else 0.0
    rng = random.Random(f"arrivals {seed}")
    shifts = [rng.uniform(-most_ms, most_ms) for _ in range(max(groups) + 1)]
    moved = [request.at_ms + shifts[group] for request, group in zip(trace.requests, groups, strict=True)]
    back_ms = min(moved) - trace.requests[0].at_ms
    requests = [replace(request, at_ms=at_ms - back_ms) for request, at_ms in zip(trace.requests, moved, strict=True)]
    return replace(trace, requests=in_order(requests))


def _groups(trace: Trace) -> list[int]:
    """The number of the conversation of each request, 0 for the first."""
    numbers: dict[tuple[str | None, str], int] = {}
    groups: list[int] = []
    count = 0
    for request in trace.requests:
        if request.after is not None:
            group = groups[request.after]
        elif request.session is not None:
            group = numbers.setdefault((request.tenant, request.session), count)
        else:
            group = count
        if group == count:
            count += 1
        if request.session is not None:
            numbers.setdefault((request.tenant, request.session), group)
        groups.append(group)
    return groups
