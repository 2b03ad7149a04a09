from __future__ import annotations

import itertools
from collections import Counter

import pytest

from harness.shared_prompts import DRAIN_MS, GROUPS, STAGES, TRACE_BLOCK_TOKENS, USERS, WARM_UP, staged


def test_the_published_stages() -> None:
    workload = staged(1)
    assert len(workload.trace) == 750 + sum(round(rate * seconds) for rate, seconds in STAGES)
    assert workload.rates == (WARM_UP[0], *(rate for rate, _ in STAGES))
    assert Counter(workload.stage)[16] == 1_500
    first = {number: workload.stage.index(number) for number in range(17)}
    for number in range(1, 17):
        before, begins = workload.trace.requests[first[number] - 1], workload.trace.requests[first[number]]
        assert workload.starts_ms[number] == before.at_ms + DRAIN_MS <= begins.at_ms
    last = [
        request.at_ms for request, stage in zip(workload.trace.requests, workload.stage, strict=True) if stage == 16
    ]
    assert (last[-1] - workload.starts_ms[16]) / 1000 == pytest.approx(25.0, rel=0.1)


def test_uniform_is_one_order_of_all_pairs_again_and_again() -> None:
    ids = [request.block_ids for request in staged(3).trace.requests]
    assert len(set(ids[:750])) == GROUPS * USERS == 750
    assert ids[:750] == ids[750:1500]
    assert ids[:750] != [request.block_ids for request in staged(4).trace.requests[:750]]


def test_users_of_a_group_share_its_system_prompt_and_nothing_else() -> None:
    ids = sorted({request.block_ids for request in staged(0).trace.requests})
    for one, other in itertools.pairwise(ids):
        shared = sum(a == b for a, b in zip(one, other, strict=True))
        assert shared * TRACE_BLOCK_TOKENS in (0, 6_000)
    assert Counter(block for prompt in ids for block in set(prompt)).most_common(1)[0][1] == USERS
    assert {len(prompt) * TRACE_BLOCK_TOKENS for prompt in ids} == {7_200}


def test_zipf_prefers_the_first_groups() -> None:
    requests = staged(0, popularity="zipf").trace.requests
    groups = Counter(request.block_ids[0] for request in requests)
    (_, most), (_, second) = groups.most_common(2)
    weights = sum(1 / (group + 1) for group in range(GROUPS))
    assert most / len(requests) == pytest.approx(1 / weights, rel=0.05)
    assert most / second == pytest.approx(2, rel=0.15)


def test_answers_that_stay_cached_have_ids_of_their_own() -> None:
    short = ((10.0, 5.0),)
    requests = staged(0, stages=short, answers_cached=True, output_tokens=9).trace.requests
    answers = {request.answer_block_ids for request in requests}
    assert len(answers) == len(requests) == 50
    assert not {block for ids in answers for block in ids} & {block for one in requests for block in one.block_ids}
    assert {request.output_tokens for request in requests} == {9}
    assert not any(request.answer_block_ids for request in staged(0, stages=short).trace.requests)
