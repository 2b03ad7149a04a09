from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.block_size import with_block_tokens
from pointsman.core.workload.reuse import reuse
from pointsman.core.workload.trace import Trace, TraceRequest
from support.workloads import traces


@given(traces(answers=False), st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_split_blocks_find_the_same(trace: Trace, block_tokens: int) -> None:
    split = with_block_tokens(trace, block_tokens)
    assert split.block_tokens == block_tokens
    for request in split.requests:
        assert len(request.block_ids) == -(-request.prompt_tokens // block_tokens)
    assert reuse(split).reusable_tokens.tolist() == reuse(trace).reusable_tokens.tolist()


@given(traces(answers=False), st.sampled_from([16, 32]))
@settings(max_examples=30, deadline=None)
def test_joined_blocks_find_whole_new_ones(trace: Trace, block_tokens: int) -> None:
    joined = with_block_tokens(trace, block_tokens)
    known: set[tuple[int, ...]] = set()
    for request, changed in zip(trace.requests, joined.requests, strict=True):
        assert len(changed.block_ids) == -(-request.prompt_tokens // block_tokens)
        parts = block_tokens // trace.block_tokens
        ends = [*range(parts, len(request.block_ids), parts), len(request.block_ids)]
        prefixes = [request.block_ids[:end] for end in ends]
        assert len(prefixes) == len(changed.block_ids)
        known.update(prefixes)
    assert len({block for r in joined.requests for block in r.block_ids}) == len(known)


@given(traces(), st.sampled_from([1, 2, 4, 16]))
@settings(max_examples=30, deadline=None)
def test_answers_go_on_where_the_prompt_ends(trace: Trace, block_tokens: int) -> None:
    changed = with_block_tokens(trace, block_tokens)
    for before, request in zip(trace.requests, changed.requests, strict=True):
        end = before.prompt_tokens + before.output_tokens
        if not before.answer_block_ids:
            assert not request.answer_block_ids
            continue
        known = (end // trace.block_tokens * trace.block_tokens) // block_tokens
        assert len(request.answer_block_ids) == max(0, known - before.prompt_tokens // block_tokens)


def test_a_follow_up_finds_the_answer_in_blocks_of_every_size() -> None:
    first = TraceRequest(0, 32, 32, (1, 2), (3, 4))
    second = TraceRequest(1, 80, 1, (1, 2, 3, 4, 5))
    trace = Trace("n", (first, second), 16)
    for block_tokens in (4, 8, 16, 32, 64):
        assert reuse(with_block_tokens(trace, block_tokens)).reusable_tokens.tolist() == [0, 64]


def test_split_in_the_middle_of_a_turn_a_follow_up_still_finds_the_answer() -> None:
    first = TraceRequest(0, 40, 30, (1, 2, 9), (3, 4))
    twin = TraceRequest(1, 40, 90, (1, 2, 9), (7, 8))
    second = TraceRequest(2, 100, 1, (1, 2, 3, 4, 5, 6, 10))
    third = TraceRequest(3, 70, 1, (1, 2, 7, 8, 11))
    trace = Trace("n", (first, twin, second, third), 16)
    for block_tokens in (1, 2, 4, 8, 16):
        assert reuse(with_block_tokens(trace, block_tokens)).reusable_tokens.tolist() == [0, 40, 64, 64]


@given(traces(), st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_splitting_loses_no_reuse(trace: Trace, block_tokens: int) -> None:
    split = with_block_tokens(trace, block_tokens)
    assert (reuse(split).reusable_tokens >= reuse(trace).reusable_tokens).all()


def test_sizes_that_do_not_fit() -> None:
    trace = Trace("n", (TraceRequest(0, 40, 1, (1, 2, 3)),), 16)
    for block_tokens in (24, 0, 5):
        with pytest.raises(TraceError, match="blocks of 16 tokens"):
            with_block_tokens(trace, block_tokens)
    assert with_block_tokens(trace, 16) is trace
    alone = replace(trace, requests=(TraceRequest(0, 4, 1),), block_tokens=0)
    assert with_block_tokens(alone, 8) is alone
