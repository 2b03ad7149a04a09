from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.workload.reuse import reuse
from pointsman.core.workload.trace import Trace, TraceRequest
from pointsman.edge.traces.formats import read_trace
from support.recorded import recorded
from support.workloads import traces


def _naive_hits(trace: Trace, blocks: int) -> list[int]:
    """Tokens of each request found in an LRU cache of so many blocks."""
    cache: OrderedDict[object, None] = OrderedDict()
    hits = []
    for request in trace.requests:
        found = 0
        while found < len(request.block_ids) and (request.model, request.block_ids[found]) in cache:
            found += 1
        hits.append(min(found * trace.block_tokens, request.prompt_tokens))
        for block in reversed(request.block_ids + request.answer_block_ids):
            cache[request.model, block] = None
            cache.move_to_end((request.model, block))
        while len(cache) > blocks:
            cache.popitem(last=False)
    return hits


@given(traces(answers=False), st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_cache_size_is_as_one_that_is_played_through(trace: Trace, two_models: bool) -> None:
    if two_models:
        requests = tuple(replace(r, model="ab"[r.prompt_tokens % 2]) for r in trace.requests)
        trace = replace(trace, requests=requests)
    found = reuse(trace)
    assert found.reusable_tokens.tolist() == _naive_hits(trace, 10**9)
    for blocks in (0, 1, 2, 3, 5, 8, 13, 21, 34, 10**6):
        assert found.hit_tokens(blocks * trace.block_tokens) == sum(_naive_hits(trace, blocks))
    for part in (0.3, 0.9, 1.0):
        size = found.cache_tokens_for(part)
        wanted = part * found.reusable_tokens.sum()
        assert found.hit_tokens(size) >= wanted
        assert size == 0 or found.hit_tokens(size - trace.block_tokens) < wanted


@given(traces())
@settings(max_examples=30, deadline=None)
def test_answers_stay_in_the_cache_too(trace: Trace) -> None:
    found = reuse(trace)
    assert found.reusable_tokens.tolist() == _naive_hits(trace, 10**9)
    distinct = {block for request in trace.requests for block in request.block_ids + request.answer_block_ids}
    assert found.distinct_tokens == len(distinct) * trace.block_tokens
    assert found.hit_tokens(found.distinct_tokens) == found.reusable_tokens.sum()


def test_what_the_own_session_had_is_told_apart() -> None:
    def asked(at_ms: float, session: str | None, *ids: int) -> TraceRequest:
        return TraceRequest(at_ms, 4 * len(ids), 1, ids, session=session)

    trace = Trace("n", (asked(0, "a", 1, 2), asked(1, "b", 1, 3), asked(2, "a", 1, 2, 4), asked(3, None, 1)), 4)
    found = reuse(trace)
    assert found.reusable_tokens.tolist() == [0, 4, 8, 4]
    assert found.same_session_tokens == 4
    assert (found.share, found.share_with(4)) == (16 / 32, 12 / 32)


def test_ids_can_be_any_numbers() -> None:
    for ids in ((2**64 - 1, 2**63), (-5, 7), (2**62, 2**62 + 1)):
        for models in ((None, None), ("m", "m")):
            requests = tuple(TraceRequest(0, 8, 1, ids, model=model) for model in models)
            assert reuse(Trace("n", requests, 4)).share == 0.5
        other = (TraceRequest(0, 8, 1, ids, model="m"), TraceRequest(0, 8, 1, ids))
        assert reuse(Trace("n", other, 4)).share == 0


def test_a_trace_without_blocks_has_no_reuse() -> None:
    found = reuse(Trace("n", (TraceRequest(0, 8, 1),)))
    assert (found.share, found.share_with(1e9), found.cache_tokens_for(0.9)) == (0, 0, 0)


def test_the_recorded_trace_has_the_figures_that_were_published_with_it() -> None:
    found = reuse(read_trace(recorded("mooncake/conversation_trace.jsonl")).trace)
    shares = [found.share, *(found.share_with(size) for size in (3e6, 10e6, 30e6))]
    assert shares == pytest.approx([0.374, 0.138, 0.291, 0.366], abs=0.001)
    assert found.distinct_tokens == 182_790 * 512
