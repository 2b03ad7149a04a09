"""Seeds move conversations in time and change nothing else."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.app.experiments.perturbation import SHIFT_GAPS, perturbed
from pointsman.app.experiments.workload import Made, Recorded, TraceMemo
from pointsman.core.workload.trace import Trace, TraceRequest


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.floats(0, 5_000), min_size=count, max_size=count))
    requests: list[TraceRequest] = []
    now = draw(st.floats(0, 10_000))
    for number, gap in enumerate(gaps):
        now += gap
        after = draw(st.none() | st.integers(0, number - 1)) if number else None
        session = draw(st.none() | st.sampled_from("abc"))
        # The prompt's length says which request it is.
        requests.append(TraceRequest(now, number + 1, 1, session=session, after=after, gap_ms=5.0))
    return Trace("t", requests)


@given(traces(), st.integers(0, 5))
def test_only_times_change(trace: Trace, seed: int) -> None:
    moved = perturbed(trace, seed)
    by_length = {request.prompt_tokens: (place, request) for place, request in enumerate(moved.requests)}
    assert len(by_length) == len(trace)
    for request in trace.requests:
        place, other = by_length[request.prompt_tokens]
        assert replace(other, at_ms=request.at_ms, after=request.after) == request
        if request.after is not None:
            assert other.after == by_length[trace.requests[request.after].prompt_tokens][0]
            assert other.after < place


@given(traces(), st.integers(0, 5))
def test_a_conversation_moves_as_a_whole_and_not_far(trace: Trace, seed: int) -> None:
    moved = {request.prompt_tokens: request.at_ms for request in perturbed(trace, seed).requests}
    if len(trace) > 1:
        assert min(moved.values()) == pytest.approx(trace.requests[0].at_ms)
    shifts: dict[object, set[float]] = defaultdict(set)
    owners: list[object] = []
    for number, request in enumerate(trace.requests):
        owners.append(owners[request.after] if request.after is not None else request.session or number)
        shifts[owners[-1]].add(round(moved[request.prompt_tokens] - request.at_ms, 3))
    for several in shifts.values():
        assert max(several) - min(several) <= 0.002
    every = [shift for several in shifts.values() for shift in several]
    if len(shifts) > 1 and all(owner == number for number, owner in enumerate(owners)):
        assert max(every) - min(every) <= 2 * SHIFT_GAPS * trace.duration_ms / (len(shifts) - 1) + 0.01


def test_the_rate_stays(trace: Trace) -> None:
    assert perturbed(trace, 3).duration_ms == pytest.approx(trace.duration_ms, rel=0.06)


def test_the_same_seed_gives_the_same_and_another_one_does_not(trace: Trace) -> None:
    assert perturbed(trace, 1) == perturbed(trace, 1)
    assert perturbed(trace, 1) != perturbed(trace, 2)


def test_one_request_has_nowhere_to_go() -> None:
    trace = Trace("t", [TraceRequest(5.0, 1, 1)])
    assert perturbed(trace, 1) == trace


def test_workloads(trace: Trace) -> None:
    assert Recorded(trace, perturb=False).trace(3) == trace
    assert Recorded(trace).trace(3) == perturbed(trace, 3)
    assert Made("made", lambda seed: replace(trace, name=str(seed))).trace(7).name == "7"


def test_runs_of_one_seed_share_their_trace(trace: Trace) -> None:
    made: list[int] = []

    def make(seed: int) -> Trace:
        made.append(seed)
        return trace

    memo = TraceMemo(Made("made", make))
    first = memo.trace(0, 2.0)
    assert memo.trace(0, 2.0) is first
    assert first.duration_ms == pytest.approx(trace.duration_ms / 2)
    memo.trace(1, 2.0)
    assert made == [0, 1]
