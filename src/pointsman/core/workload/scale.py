"""More or less traffic of the same kind, with what prompts have in common kept.

Three ways, which change different things. `faster` compresses time: prompts, their order and what they share stay,
only pauses between arrivals shrink, so a session's turns follow at the same distance but more sessions overlap.
`clone` adds more users who do the same as those there are; a cache has to hold all of them. `thin` leaves some users
out. Both act on whole sessions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.cut import kept_only
from pointsman.core.workload.generators.arrivals import Arrivals, arrival_times
from pointsman.core.workload.ordering import in_order
from pointsman.core.workload.trace import Trace, TraceRequest


def faster(trace: Trace, factor: float, *, gaps: bool = False) -> Trace:
    """`factor` times the arrival rate. Below 1 it is slower.

    A request that waits for an answer keeps its distance to the request before it, for nobody thinks faster because
    there are more of them; with `gaps` these are divided too, and all times are.
    """
    if not 0 < factor < math.inf:
        raise TraceError(f"a rate times {factor} can't be; above 0 is expected")
    moved: list[TraceRequest] = []
    for request in trace.requests:
        if request.after is None or gaps:
            moved.append(
                replace(
                    request, at_ms=request.at_ms / factor, gap_ms=request.gap_ms / factor if gaps else request.gap_ms
                )
            )
            continue
        distance_ms = request.at_ms - trace.requests[request.after].at_ms
        moved.append(replace(request, at_ms=moved[request.after].at_ms + distance_ms))
    return replace(trace, requests=in_order(moved), source=_noted(trace, f"rate times {factor:g}"))


def clone(
    trace: Trace, times: int, rng: np.random.Generator, *, keep_shared: bool = False, spread_s: float | None = None
) -> Trace:
    """`times` times the sessions: each copy has new ids of sessions and blocks, so it shares nothing with the others.

    With `keep_shared`, blocks that several sessions of the trace have in common (system prompts) are common to all
    copies too; a trace without sessions can't tell which those are. A copied session starts up to `spread_s` later
    than the one it copies, by default ten times the mean distance of sessions but at most a tenth of the trace, so that
    its end is not much emptier than the rest.
    """
    if times < 1:
        raise TraceError(f"{times} times a trace can't be; at least once is expected")
    sessions = _session_positions(trace)
    if keep_shared and not any(request.session is not None for request in trace.requests):
        raise TraceError(f"{trace.name} has no sessions, so nobody knows which blocks several of them share")
    if spread_s is None:
        spread_s = trace.duration_ms / 1000.0 * min(10 / max(1, len(sessions)), 0.1)
    if not 0 <= spread_s < math.inf:
        raise TraceError(f"copies that start up to {spread_s:g} s later can't be")
    private = _private(trace, sessions) if keep_shared else None
    stride = 1 + max((max(_all_ids(request), default=0) for request in trace.requests), default=0)
    requests = list(trace.requests)
    for copy in range(1, times):
        base = len(requests)
        delays = np.zeros(len(trace))
        for positions in sessions.values():
            delays[positions] = rng.random() * spread_s * 1000.0
        for request, delay_ms in zip(trace.requests, delays.tolist(), strict=True):
            requests.append(
                replace(
                    request,
                    at_ms=request.at_ms + delay_ms,
                    block_ids=_renamed(request.block_ids, copy * stride, private),
                    answer_block_ids=_renamed(request.answer_block_ids, copy * stride, private),
                    session=None if request.session is None else f"{request.session}~{copy}",
                    after=None if request.after is None else request.after + base,
                )
            )
    return replace(trace, requests=in_order(requests), source=_noted(trace, f"{times} times the sessions"))


def thin(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    """Each session, or request without one, is kept with that probability. Raises TraceError when none is."""
    if not 0 < share <= 1:
        raise TraceError(f"a share of {share} can't be kept; above 0 and at most 1 is expected")
    kept: list[int] = []
    for positions in _session_positions(trace).values():
        if rng.random() < share:
            kept += positions
    return replace(kept_only(trace, sorted(kept)), source=_noted(trace, f"{share:g} of the sessions"))


def restart_sessions(trace: Trace, arrivals: Arrivals, rng: np.random.Generator) -> Trace:
    """The same sessions in a random order, started by another process: for traces whose sessions all start at 0."""
    groups = list(_session_positions(trace).values())
    starts = arrival_times(arrivals, rng, len(groups))
    if len(starts) < len(groups):
        raise TraceError(f"the arrivals end after {len(starts)} of {len(groups)} sessions")
    requests = list(trace.requests)
    for group, start_ms in zip(rng.permutation(len(groups)).tolist(), starts, strict=True):
        shift_ms = start_ms - trace.requests[groups[group][0]].at_ms
        for position in groups[group]:
            requests[position] = replace(requests[position], at_ms=max(0.0, requests[position].at_ms + shift_ms))
    return replace(trace, requests=in_order(requests), source=_noted(trace, "sessions started anew"))


def _session_positions(trace: Trace) -> dict[object, list[int]]:
    """Requests by session. A session that waits for another one's request, such as a sub-agent's, stays with it."""
    roots: list[object] = []
    root_of_session: dict[str, object] = {}
    groups: dict[object, list[int]] = defaultdict(list)
    for position, request in enumerate(trace.requests):
        root: object = position if request.after is None else roots[request.after]
        if request.session is not None:
            root = root_of_session.setdefault(request.session, root)
        roots.append(root)
        groups[root].append(position)
    return groups


def _private(trace: Trace, sessions: Mapping[object, list[int]]) -> frozenset[int]:
    """Blocks that one session only has, together with those that belong to it."""
    owners: dict[int, int] = {}
    shared: set[int] = set()
    for owner, positions in enumerate(sessions.values()):
        for position in positions:
            for block in _all_ids(trace.requests[position]):
                if owners.setdefault(block, owner) != owner:
                    shared.add(block)
    return frozenset(owners.keys() - shared)


def _all_ids(request: TraceRequest) -> tuple[int, ...]:
    return request.block_ids + request.answer_block_ids


def _renamed(ids: tuple[int, ...], offset: int, private: frozenset[int] | None) -> tuple[int, ...]:
    if private is None:
        return tuple(block + offset for block in ids)
    return tuple(block + offset if block in private else block for block in ids)


def _noted(trace: Trace, what: str) -> str:
    return f"{trace.source}; {what}" if trace.source else what
