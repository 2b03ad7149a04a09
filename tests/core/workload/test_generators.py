from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.generators.agents import Agents, agents
from pointsman.core.workload.generators.arrivals import AtOnce, Constant, Poisson, Stage, Staged
from pointsman.core.workload.generators.chat import Chat, chat
from pointsman.core.workload.generators.distributions import Fixed
from pointsman.core.workload.generators.independent import Independent, independent
from pointsman.core.workload.generators.rag import Rag, rag
from pointsman.core.workload.generators.shared_prefix import Order, SharedPrefix, shared_prefix
from pointsman.core.workload.trace import Trace, TraceRequest


def _rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


_SMALL: list[Callable[[np.random.Generator], Trace]] = [
    lambda rng: chat(Chat(Poisson(1), sessions=20), rng),
    lambda rng: agents(Agents(Poisson(0.1), sessions=4), rng),
    lambda rng: rag(Rag(Poisson(1), requests=50), rng),
    lambda rng: shared_prefix(SharedPrefix(Poisson(1), requests=50), rng),
    lambda rng: independent(Independent(Poisson(1), requests=50), rng),
]


@pytest.mark.parametrize("make", _SMALL)
def test_a_seed_gives_the_same_trace_and_another_one_another(make: Callable[[np.random.Generator], Trace]) -> None:
    trace = make(_rng())
    assert trace == make(_rng())
    assert trace != make(_rng(4))
    assert trace.source.startswith("made: ")


def _sessions(trace: Trace) -> dict[str | None, list[TraceRequest]]:
    sessions: dict[str | None, list[TraceRequest]] = {}
    for request in trace.requests:
        sessions.setdefault(request.session, []).append(request)
    return sessions


@pytest.mark.parametrize("make", _SMALL[:2])
def test_turns_repeat_all_that_was_said(make: Callable[[np.random.Generator], Trace]) -> None:
    trace = make(_rng())
    repeated = 0
    for turns in _sessions(trace).values():
        for before, turn in pairwise(turns):
            assert turn.after is not None
            assert trace.requests[turn.after] is before
            if turn.prompt_tokens < before.prompt_tokens:
                continue  # its context was summed up
            full = (before.prompt_tokens + before.output_tokens) // trace.block_tokens
            known = before.block_ids[: before.prompt_tokens // trace.block_tokens] + before.answer_block_ids
            assert len(known) == full
            assert turn.block_ids[:full] == known
            repeated += 1
    assert repeated > 20


def test_chat_is_as_asked() -> None:
    settings = Chat(
        Constant(1),
        system_prompts=2,
        zipf=0,
        system_tokens=Fixed(64),
        turns=Fixed(5),
        user_tokens=Fixed(16),
        output_tokens=Fixed(10),
        think_ms=Fixed(2000),
        most_tokens=150,
        sessions=8,
    )
    trace = chat(settings, _rng())
    sessions = _sessions(trace)
    assert len(sessions) == 8
    for turns in sessions.values():
        # The fourth turn would end at 64 + 4 * (16 + 10) = 168 tokens.
        assert [turn.prompt_tokens for turn in turns] == [80, 106, 132]
        assert [turn.gap_ms for turn in turns] == [0, 2000, 2000]
        assert [one.at_ms - other.at_ms for other, one in pairwise(turns)] == [2700, 2700]
    assert len({turns[0].block_ids[:4] for turns in sessions.values()}) == 2
    alone = chat(Chat(AtOnce(), system_prompts=0, sessions=8), _rng())
    assert len({turns[0].block_ids[0] for turns in _sessions(alone).values()}) == 8


def test_agents_are_like_the_recorded_ones() -> None:
    runs = _sessions(agents(Agents(Poisson(0.1), sessions=100, block_tokens=1024), _rng()))
    steps = [step for run in runs.values() for step in run]
    medians = [
        np.median([step.prompt_tokens for step in steps]),
        np.median([step.output_tokens for step in steps]),
        np.median([len(run) for run in runs.values()]),
        np.median([step.gap_ms for step in steps if step.after is not None]),
    ]
    assert medians == pytest.approx([99_158, 219, 30, 10_000], rel=0.25)


def test_agents_sum_up_long_contexts_and_keep_the_shared_prompt() -> None:
    settings = Agents(
        AtOnce(),
        kinds=1,
        system_tokens=Fixed(160),
        tasks=Fixed(1),
        steps=Fixed(6),
        task_tokens=Fixed(32),
        result_tokens=Fixed(64),
        output_tokens=Fixed(16),
        tool_ms=Fixed(700),
        summary_tokens=Fixed(48),
        most_tokens=400,
        sessions=2,
    )
    runs = _sessions(agents(settings, _rng()))
    for steps in runs.values():
        assert [step.prompt_tokens for step in steps] == [192, 272, 352, 272, 352, 272]
        assert [step.gap_ms for step in steps] == [0, 700, 700, 700, 700, 700]
    shared = {step.block_ids[:10] for steps in runs.values() for step in steps}
    assert len(shared) == 1
    assert len({step.block_ids[10] for steps in runs.values() for step in steps}) == 6


def test_the_llm_d_workload() -> None:
    stages = Staged((Stage(15, 50), Stage(60, 25)), pause_s=60)
    trace = shared_prefix(SharedPrefix(stages), _rng())
    assert len(trace) == pytest.approx(15 * 50 + 60 * 25, rel=0.1)
    assert {(request.prompt_tokens, request.output_tokens) for request in trace.requests} == {(7200, 500)}
    assert trace.requests[-1].at_ms > 110_000
    pairs = [request.session for request in trace.requests]
    assert pairs[:750] == pairs[750:1500]
    assert len(set(pairs)) == 750
    assert len({request.block_ids[:375] for request in trace.requests}) == 150
    assert len({request.block_ids for request in trace.requests}) == 750


def test_orders_of_groups() -> None:
    again = shared_prefix(SharedPrefix(AtOnce(), order=Order.PASSES, requests=1500), _rng())
    pairs = [request.session for request in again.requests]
    assert set(pairs[:750]) == set(pairs[750:])
    assert pairs[:750] != pairs[750:]
    drawn = shared_prefix(SharedPrefix(AtOnce(), order=Order.DRAWN, zipf=1.0, requests=20_000), _rng())
    groups = Counter((request.session or "").partition("/")[0] for request in drawn.requests)
    wanted = 20_000 / sum(1 / rank for rank in range(1, 151))
    assert groups["group-0"] == pytest.approx(wanted, rel=0.05)
    assert groups["group-9"] == pytest.approx(wanted / 10, rel=0.15)
    with pytest.raises(TraceError, match="only when they are drawn"):
        shared_prefix(SharedPrefix(AtOnce(), zipf=1.0, requests=1), _rng())


def test_rag_shares_popular_documents() -> None:
    def settings(popular_first: bool) -> Rag:
        return Rag(
            AtOnce(),
            documents=20,
            zipf=1.5,
            documents_a_request=3,
            popular_first=popular_first,
            system_tokens=Fixed(32),
            document_tokens=Fixed(320),
            requests=400,
        )

    firsts = []
    for popular_first in (True, False):
        trace = rag(settings(popular_first), _rng())
        assert all(request.prompt_tokens > 32 + 3 * 320 for request in trace.requests)
        assert len({request.block_ids[:2] for request in trace.requests}) == 1
        firsts.append(Counter(request.block_ids[:22] for request in trace.requests).most_common(1)[0][1])
    assert firsts[0] > 1.3 * firsts[1] > 60
    with pytest.raises(TraceError, match="21 different ones of 20"):
        rag(Rag(AtOnce(), documents=20, documents_a_request=21, requests=1), _rng())
