"""The stretch that is simulated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pointsman.app.advice.excerpt import busiest, coarse_block_tokens
from pointsman.core.workload.trace import Trace, TraceRequest


def _uneven() -> Trace:
    """One request a second, but ten a second from the 400th to the 600th."""
    times = [1_000.0 * n for n in range(400)]
    times += [times[-1] + 100.0 * (n + 1) for n in range(200)]
    times += [times[-1] + 1_000.0 * (n + 1) for n in range(400)]
    return Trace("uneven", tuple(TraceRequest(at_ms, 100, 10) for at_ms in times))


def test_a_short_trace_stays_whole() -> None:
    trace = _uneven()
    excerpt = busiest(trace, np.ones(1_000), most_cost=1_000)
    assert excerpt.whole
    assert excerpt.trace is trace
    assert excerpt.load == 1


def test_of_a_long_one_the_busiest_stretch_is_taken() -> None:
    excerpt = busiest(_uneven(), np.ones(1_000), most_cost=200)
    assert not excerpt.whole
    assert len(excerpt.trace) == 200
    assert excerpt.first == pytest.approx(400, abs=8)
    assert excerpt.trace.requests[0].at_ms == 0
    assert excerpt.trace.duration_ms < 30_000
    assert excerpt.load > 4


def test_busy_is_where_work_comes_not_where_requests_come() -> None:
    work = np.ones(1_000)
    work[800:] = 100.0
    assert busiest(_uneven(), work, most_cost=200).first == 800


def test_prompts_of_many_blocks_cost_more() -> None:
    requests = tuple(TraceRequest(float(n), 16 * 300, 1, tuple(range(300))) for n in range(100))
    excerpt = busiest(Trace("long", requests, 16), np.ones(100), most_cost=150)
    assert len(excerpt.trace) == 50

    assert len(busiest(Trace("long", requests, 16), np.ones(100), 150, block_tokens=128).trace) == 100


@pytest.mark.parametrize(
    ("block_tokens", "prompt_tokens", "expected"),
    [(16, 800, None), (16, 1_000, 32), (16, 50_000, 128), (512, 50_000, None), (0, 50_000, None), (48, 9_000, 96)],
)
def test_long_prompts_get_larger_blocks(block_tokens: int, prompt_tokens: int, expected: int | None) -> None:
    ids = (1,) if block_tokens else ()
    assert coarse_block_tokens(Trace("made", (TraceRequest(0.0, prompt_tokens, 1, ids),), block_tokens)) == expected


def test_who_waited_for_a_request_before_the_stretch_comes_at_its_own_time() -> None:
    trace = _uneven()
    requests = list(trace.requests)
    requests[450] = replace(requests[450], after=3, gap_ms=5.0)
    requests[451] = replace(requests[451], after=450, gap_ms=5.0)
    excerpt = busiest(replace(trace, requests=tuple(requests)), np.ones(1_000), most_cost=200)
    at = 450 - excerpt.first
    assert excerpt.trace.requests[at].after is None
    assert excerpt.trace.requests[at].at_ms == requests[450].at_ms - requests[excerpt.first].at_ms
    assert excerpt.trace.requests[at + 1].after == at
