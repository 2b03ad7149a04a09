"""Continuous batching over real contents: whatever happens around a request, its tokens are those it gets alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence, SampledRequest
from pointsman.edge.engines.embedded.engine import EmbeddedEngine
from pointsman.edge.engines.embedded.sampling import Sampling
from pointsman.edge.engines.embedded.seeded_weights import tiny_config
from support.embedded_models import decoder, embedded_engine, greedy

VOCABULARY = 300
MODEL = decoder(tiny_config(VOCABULARY))


def engine(**changes: int | bool) -> EmbeddedEngine:
    return embedded_engine(MODEL, **changes)


def step(running: EmbeddedEngine) -> bool:
    work = running.begin(0.0)
    if work is None:
        return False
    running.compute(work)
    running.finish(0.0)
    return True


def answers(running: EmbeddedEngine, requests: list[SampledRequest]) -> list[list[int]]:
    sequences = [running.model.add(request)[0] for request in requests]
    while step(running):
        pass
    return [list(sequence.answer) for sequence in sequences if isinstance(sequence, ComputedSequence)]


def pages_add_up(running: EmbeddedEngine) -> None:
    """Every block is free, cached or a sequence's, once, as the scheduler counts them."""
    scheduler = running._scheduler
    pages, pool = scheduler.pages, scheduler.pool
    names = pages._of_name
    plain = [block for blocks in pages._plain.values() for block in blocks]
    every = [*pages._free, *names.values(), *plain]
    assert sorted(every) == list(range(1, pool.num_blocks + 1))
    assert set(names) == set(pool._cached)
    assert all(len(pages.table(sequence)) == sequence.blocks for sequence in running.model.requests())


def test_a_request_alone() -> None:
    prompt = list(range(50))
    assert answers(engine(), [SampledRequest("a", prompt, 30)]) == [greedy(MODEL, prompt, 30)]


def test_a_cached_prefix_is_used_and_changes_nothing() -> None:
    running = engine()
    shared = list(range(100, 164))
    answers(running, [SampledRequest("a", [*shared, 1, 2, 3], 8)])
    sequence = running.model.add(SampledRequest("b", [*shared, 9], 20))[0]
    while step(running):
        pass
    assert sequence.cached_tokens == 64
    assert list(sequence.tokens[65:]) == greedy(MODEL, [*shared, 9], 20)


def test_answers_of_one_request_draw_apart() -> None:
    running = engine()
    request = SampledRequest("a", [1, 2, 3], 20, sequences=3, sampling=Sampling(seed=5))
    sequences = running.model.add(request)
    while step(running):
        pass
    drawn = [tuple(sequence.answer) for sequence in sequences]
    assert len(set(drawn)) == 3
    again = engine()
    assert answers(again, [SampledRequest("a", [1, 2, 3], 20, sampling=Sampling(seed=6))]) == [list(drawn[1])]


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 60), st.integers(1, 24)),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("steps"), st.integers(1, 12)),
    ),
    min_size=1,
    max_size=30,
)


@given(events=EVENTS, blocks=st.sampled_from([12, 16, 30]))
@settings(max_examples=60)
def test_tokens_and_pages_are_right_whatever_happens(events, blocks: int) -> None:
    """With few blocks: sequences are preempted, blocks evicted and handed out again."""
    running = engine(num_blocks=blocks, max_model_len=96, block_size=8, max_batched_tokens=24, max_num_seqs=4)
    running.kv.block(0)[:] = 0
    started: list[tuple[str, list[int], int, ComputedSequence]] = []
    for number, event in enumerate(events):
        if event[0] == "add":
            _, family, length, output = event
            prompt = [(7 * family + n) % VOCABULARY for n in range(min(length, 90))]
            output = min(output, blocks * 8 - len(prompt), 96 - len(prompt))
            if output < 1:
                continue
            sequence = running.model.add(SampledRequest(str(number), prompt, output))[0]
            started.append((str(number), prompt, output, sequence))
        elif event[0] == "abort" and started:
            running.model.abort(started[event[1] % len(started)][0])
        elif event[0] == "steps":
            for _ in range(event[1]):
                step(running)
        pages_add_up(running)
    for _ in range(3_000):
        if not step(running):
            break
    pages_add_up(running)
    assert running.model.idle
    assert running._scheduler.pool.used == 0
    for _, prompt, output, sequence in started:
        expected = greedy(MODEL, prompt, output)
        assert list(sequence.answer) == expected[: len(sequence.answer)]
