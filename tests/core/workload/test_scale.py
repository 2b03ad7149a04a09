from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.arrivals import Constant, Poisson, Stage, Staged
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.reuse import reuse
from pointsman.core.workload.scale import clone, faster, restart_sessions, thin
from pointsman.core.workload.trace import Trace, TraceRequest
from support.workloads import traces


def _rng() -> np.random.Generator:
    return np.random.default_rng(3)


def _contents(trace: Trace) -> Counter[tuple[int, int, str | None, tuple[int, ...]]]:
    return Counter((r.prompt_tokens, r.output_tokens, r.session, r.block_ids) for r in trace.requests)


@given(traces(), st.sampled_from([0.25, 1.0, 2.0, 8.0]))
@settings(max_examples=30, deadline=None)
def test_faster_changes_only_times(trace: Trace, factor: float) -> None:
    scaled = faster(trace, factor)
    assert _contents(scaled) == _contents(trace)
    for request in scaled.requests:
        if request.after is not None:
            assert request.at_ms >= scaled.requests[request.after].at_ms
    starts = [request.at_ms for request in trace.requests if request.after is None]
    scaled_starts = [request.at_ms for request in scaled.requests if request.after is None]
    assert scaled_starts == pytest.approx([at_ms / factor for at_ms in starts])
    gaps = sorted(request.gap_ms for request in scaled.requests)
    assert gaps == sorted(request.gap_ms for request in trace.requests)


@given(traces(), st.sampled_from([0.25, 2.0]))
@settings(max_examples=30, deadline=None)
def test_with_gaps_all_times_are_divided(trace: Trace, factor: float) -> None:
    scaled = faster(trace, factor, gaps=True)
    assert [r.at_ms * factor for r in scaled.requests] == pytest.approx([r.at_ms for r in trace.requests])
    assert [r.gap_ms * factor for r in scaled.requests] == pytest.approx([r.gap_ms for r in trace.requests])
    assert [r.after for r in scaled.requests] == [r.after for r in trace.requests]


@given(traces(), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_copies_share_nothing_and_are_alike(trace: Trace, times: int) -> None:
    copied = clone(trace, times, _rng(), spread_s=0)
    by_copy = defaultdict(set)
    for request in copied.requests:
        copy = (request.session or "").partition("~")[2] if request.session else None
        by_copy[copy] |= set(request.block_ids)
    assert len(copied) == times * len(trace)
    assert reuse(copied).distinct_tokens == times * reuse(trace).distinct_tokens
    assert reuse(copied).reusable_tokens.sum() == times * reuse(trace).reusable_tokens.sum()
    lengths = Counter(request.prompt_tokens for request in copied.requests)
    assert lengths == Counter({n: times * c for n, c in Counter(r.prompt_tokens for r in trace.requests).items()})
    assert clone(trace, 1, _rng()).requests == trace.requests


def test_copies_can_keep_what_sessions_share() -> None:
    trace = chat(Chat(Poisson(1), system_prompts=2, sessions=30), _rng())
    apart, together = clone(trace, 3, _rng()), clone(trace, 3, _rng(), keep_shared=True)
    firsts = [len({r.block_ids[0] for r in made.requests}) for made in (trace, apart, together)]
    assert firsts == [2, 6, 2]
    assert len({r.session for r in together.requests}) == 90
    for made in (apart, together):
        for request in made.requests:
            if request.after is not None:
                before = made.requests[request.after]
                full = (before.prompt_tokens + before.output_tokens) // 16
                known = before.block_ids[: before.prompt_tokens // 16] + before.answer_block_ids
                assert request.block_ids[:full] == known
                assert request.session == before.session
    with pytest.raises(TraceError, match="no sessions"):
        clone(Trace("n", (TraceRequest(0, 1, 1),)), 2, _rng(), keep_shared=True)


def test_copies_of_a_session_and_its_sub_agents_keep_only_what_other_sessions_have() -> None:
    requests = []
    for number in (0, 1):
        own = 10 * (number + 1)
        requests += [
            TraceRequest(0, 3, 1, (1, own, own + 1), session=f"s{number}"),
            TraceRequest(0, 3, 1, (1, own, own + 2), session=f"s{number}/sub", after=2 * number),
        ]
    copied = clone(Trace("n", tuple(requests), 1), 2, _rng(), keep_shared=True, spread_s=0)
    firsts, seconds = ({r.block_ids[place] for r in copied.requests} for place in (0, 1))
    assert (len(firsts), len(seconds)) == (1, 4)


def test_copies_of_few_sessions_make_the_trace_little_longer() -> None:
    trace = Trace("n", tuple(TraceRequest(10_000.0 * number, 1, 1) for number in range(4)))
    assert clone(trace, 5, _rng()).duration_ms <= 1.1 * trace.duration_ms
    for spread_s in (float("inf"), float("nan"), -1):
        with pytest.raises(TraceError, match="copies that start up to"):
            clone(trace, 2, _rng(), spread_s=spread_s)
    with pytest.raises(TraceError, match="request 1: it arrives at inf ms"):
        faster(trace, 1e-320)


def test_copies_start_later_as_whole_sessions() -> None:
    trace = chat(Chat(Constant(1), sessions=20), _rng())
    copied = clone(trace, 2, _rng(), spread_s=5)
    starts: dict[str, float] = {}
    for request in copied.requests:
        starts.setdefault(request.session or "", request.at_ms)
    delays = [starts[f"chat-{n}~1"] - starts[f"chat-{n}"] for n in range(20)]
    assert all(0 <= delay < 5000 for delay in delays)
    assert len(set(delays)) == 20


def test_thin_keeps_whole_sessions() -> None:
    trace = chat(Chat(Poisson(1), sessions=400), _rng())
    thinned = thin(trace, 0.25, _rng())
    before, after = (Counter(request.session for request in made.requests) for made in (trace, thinned))
    assert 60 < len(after) < 140
    assert all(before[session] == count for session, count in after.items())
    assert sum(request.after is None for request in thinned.requests) == len(after)
    with pytest.raises(TraceError, match="nothing of n is left"):
        thin(Trace("n", (TraceRequest(0, 1, 1),)), 1e-9, _rng())


def test_a_session_that_another_one_starts_stays_with_it() -> None:
    requests = []
    for number in range(40):
        at_ms = 10.0 * number
        requests += [
            TraceRequest(at_ms, 1, 1, session=f"s{number}"),
            TraceRequest(at_ms, 2, 1, session=f"s{number}/sub", after=3 * number),
            TraceRequest(at_ms, 3, 1, session=f"s{number}/sub"),
        ]
    thinned = thin(Trace("n", tuple(requests)), 0.5, _rng())
    counts = Counter((request.session or "").partition("/")[0] for request in thinned.requests)
    assert set(counts.values()) == {3}
    assert 8 < len(counts) < 32


def test_sessions_can_be_started_anew() -> None:
    trace = chat(Chat(Poisson(100), sessions=30), _rng())
    anew = restart_sessions(trace, Constant(0.5), _rng())
    starts = sorted(request.at_ms for request in anew.requests if request.after is None)
    assert [later - earlier for earlier, later in pairwise(starts)] == pytest.approx([2000] * 29)
    assert _contents(anew) == _contents(trace)
    with pytest.raises(TraceError, match="the arrivals end after 0 of 30 sessions"):
        restart_sessions(trace, Staged((Stage(0, 1),)), _rng())


@pytest.mark.parametrize(
    "scale",
    [
        lambda trace: faster(trace, 0),
        lambda trace: faster(trace, float("inf")),
        lambda trace: clone(trace, 0, _rng()),
        lambda trace: thin(trace, 0, _rng()),
        lambda trace: thin(trace, 1.5, _rng()),
    ],
)
def test_what_cannot_be_is_refused(scale: object) -> None:
    with pytest.raises(TraceError):
        scale(Trace("n", (TraceRequest(0, 1, 1),)))  # type: ignore[operator]
