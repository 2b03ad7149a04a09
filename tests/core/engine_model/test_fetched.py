"""A part of a prompt's KV comes from elsewhere, and the rest is computed; blocks are held for others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.stage import Stage
from pointsman.core.timing.step import StepCoefficients

MakeEngine = Callable[..., EngineModel]
Run = Callable[[EngineModel], list[StepResult]]
PROMPT = tuple(range(18))


def prefill(key: str = "a", **more: int) -> EngineRequest:
    return EngineRequest(key, PROMPT, 1, stage=Stage.PREFILL, **more)


def reserved(engine: EngineModel, key: str = "a", answer: int = 4) -> Sequence:
    (sequence,) = engine.add(EngineRequest(key, PROMPT, answer, stage=Stage.DECODE))
    engine.begin_step(0.0)
    assert sequence in engine.take_reserved()
    return sequence


def answer_of(results: list[StepResult]) -> list[int]:
    return [token for result in results for _, token in result.tokens]


def test_what_did_not_come_is_computed_and_the_answer_is_the_same(make_engine: MakeEngine, run: Run) -> None:
    alone = make_engine()
    alone.add(EngineRequest("a", PROMPT, 4))
    engine = make_engine()
    sequence = reserved(engine)
    assert engine.fetched(sequence, 13)
    assert not engine.idle
    results = run(engine)
    assert results[0].decodes == 0
    assert answer_of(results) == answer_of(run(alone))
    counters = engine.counters
    assert (counters.prompt_tokens_transferred, counters.prompt_tokens_computed) == (13, 5)
    assert counters.prompt_tokens_cached == 0
    assert sequence.cached_tokens == 13
    assert engine.kv_use == 0
    assert sorted(engine.cached_hashes()) == sorted(alone.cached_hashes())


def test_blocks_that_came_are_announced_when_they_are_there_and_the_others_when_computed(
    make_engine: MakeEngine, run: Run
) -> None:
    engine = make_engine()
    sequence = reserved(engine)
    assert engine.take_events() == []
    engine.fetched(sequence, 13)
    (event,) = engine.take_events()
    assert event.token_ids == PROMPT[:12]  # type: ignore[union-attr]
    (first, *_) = run(engine)
    assert first.events[0].token_ids == PROMPT[12:16]  # type: ignore[union-attr]


def test_nothing_that_came_means_that_all_is_computed(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(max_batched_tokens=8)
    sequence = reserved(engine)
    assert engine.fetched(sequence, 0)
    assert not engine.fetched(sequence, 0)
    run(engine)
    assert engine.counters.prompt_tokens_computed == 18
    assert sequence.state is SequenceState.FINISHED


def test_blocks_that_were_reserved_stay_so_while_the_rest_is_computed_in_chunks(
    make_engine: MakeEngine, run: Run
) -> None:
    engine = make_engine(num_blocks=5, max_model_len=20, max_batched_tokens=4, max_num_seqs=4)
    sequence = reserved(engine, answer=2)
    engine.fetched(sequence, 5)
    blocks = []
    while not sequence.generated:
        assert engine.begin_step(0.0) is not None
        blocks.append((sequence.blocks, engine.kv_use))
        engine.finish_step(0.0)
    assert blocks == [(5, 1.0)] * 4
    run(engine)
    assert (sequence.generated, sequence.preemptions, engine.kv_use) == (2, 0, 0)


def test_blocks_of_the_cache_count_as_there(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(EngineRequest("before", PROMPT[:9], 1))
    run(engine)
    sequence = reserved(engine)
    assert sequence.computed == 8
    with pytest.raises(ValueError, match="4 tokens fetched, 8 of 18"):
        engine.fetched(sequence, 4)
    with pytest.raises(ValueError, match="18 tokens fetched"):
        engine.fetched(sequence, 18)
    assert engine.fetched(sequence, 17)
    run(engine)
    counters = engine.counters
    assert (counters.prompt_tokens_cached, counters.prompt_tokens_transferred) == (8, 9)
    assert counters.prompt_tokens_computed == 9 + 1


@pytest.mark.parametrize("come", [False, True])
def test_an_abort_while_blocks_are_reserved_frees_them(make_engine: MakeEngine, come: bool) -> None:
    engine = make_engine()
    sequence = reserved(engine)
    if come:
        engine.fetched(sequence, 12)
    assert engine.kv_use > 0
    assert engine.abort("a")
    assert not engine.fetched(sequence, 12)
    assert engine.kv_use == 0
    assert engine.idle
    assert engine.begin_step(1.0) is None


def test_of_several_answers_one_holds_the_prompt(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(prefill(sequences=3))
    run(engine)
    assert engine.held == 1
    assert engine.release_held("a")
    assert (engine.held, engine.kv_use) == (0, 0)


def test_cached_blocks_can_be_held_and_are_not_evicted_then(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32)
    engine.add(EngineRequest("before", PROMPT, 1))
    run(engine)
    held = engine.hold(EngineRequest("h", (*PROMPT[:9], 77), 1))
    assert held is not None
    assert (held.computed, held.blocks, engine.held) == (8, 2, 1)
    with pytest.raises(RequestRefusedError, match="in use"):
        engine.hold(EngineRequest("h", PROMPT, 1))
    engine.add(EngineRequest("other", range(100, 123), 1))
    run(engine)
    assert set(held.hashes[:2]) <= set(engine.cached_hashes())
    assert not engine.reset_prefix_cache()
    assert engine.release_held("h")
    assert engine.kv_use == 0


def test_nothing_cached_is_nothing_held(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    assert engine.hold(EngineRequest("h", PROMPT, 1)) is None
    engine.add(EngineRequest("a", PROMPT, 2))
    engine.begin_step(0.0)
    with pytest.raises(RuntimeError, match="a step has begun"):
        engine.hold(EngineRequest("h", PROMPT, 1))
    assert engine.held == 0


@given(data=st.data())
def test_at_rest_nothing_is_held_and_whatever_came_and_whoever_left(data: st.DataObject) -> None:
    config = EngineConfig(
        step=StepCoefficients(1, 0, 0, 0),
        num_blocks=data.draw(st.integers(8, 20)),
        block_size=4,
        max_num_seqs=data.draw(st.integers(1, 4)),
        max_batched_tokens=data.draw(st.integers(4, 16)),
        max_model_len=30,
    )
    engine = EngineModel(config)
    waiting: list[Sequence] = []
    number = 0
    for _ in range(data.draw(st.integers(5, 40))):
        what = data.draw(st.sampled_from(["add", "add", "step", "step", "fetched", "abort", "hold", "release"]))
        if what == "add":
            number += 1
            prompt = PROMPT[: data.draw(st.integers(1, 18))]
            stage = data.draw(st.sampled_from(list(Stage)))
            engine.add(EngineRequest(str(number), prompt, data.draw(st.integers(1, 6)), stage=stage))
        elif what == "hold" and not engine.in_step:
            number += 1
            engine.hold(EngineRequest(str(number), PROMPT, 1))
        elif what == "step":
            if engine.in_step:
                engine.finish_step(0.0)
            else:
                engine.begin_step(0.0)
            waiting += engine.take_reserved()
        elif what == "fetched" and waiting:
            sequence = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            engine.fetched(
                sequence, data.draw(st.integers(sequence.computed, max(sequence.computed, sequence.prompt_length - 1)))
            )
        elif number:
            key = str(data.draw(st.integers(1, number)))
            if what == "abort":
                engine.abort(key)
            else:
                engine.release_held(key)
    for _ in range(1_000):
        if engine.in_step:
            engine.finish_step(0.0)
        for sequence in [*waiting, *engine.take_reserved()]:
            engine.fetched(sequence, sequence.computed)
        waiting = []
        for key in range(1, number + 1):
            engine.release_held(str(key))
        engine.begin_step(0.0)
        if not engine.in_step and not engine.requests():
            break
    assert engine.idle
    assert (engine.held, engine.kv_use, engine.running, engine.waiting) == (0, 0, 0, 0)
    assert engine.reset_prefix_cache()
