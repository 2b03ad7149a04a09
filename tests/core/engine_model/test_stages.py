"""Prefill on one engine, decode on another one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.events import BlockStored
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.stage import Stage

MakeEngine = Callable[..., EngineModel]
Run = Callable[[EngineModel], list[StepResult]]


def hashes(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def decode(key: str, prompt: int, output: int, first: int = 100) -> LengthRequest:
    return LengthRequest(key, prompt, output, hashes(first, prompt // 4), stage=Stage.DECODE)


def test_a_prefill_ends_with_its_first_token_and_holds_its_blocks(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    (sequence,) = engine.add(LengthRequest("a", 18, 50, hashes(0, 4), stage=Stage.PREFILL))
    (result,) = run(engine)
    assert result.first == result.finished == [sequence]
    assert (sequence.state, sequence.generated) == (SequenceState.FINISHED, 1)
    assert engine.idle
    assert engine.kv_use == 5 / 64
    with pytest.raises(RequestRefusedError, match="'a' is in use"):
        engine.add(LengthRequest("a", 18, 50))
    assert not engine.reset_prefix_cache()
    assert engine.release_held("a")
    assert not engine.release_held("a")
    assert engine.kv_use == 0
    assert engine.cached_hashes() == [0, 1, 2, 3]


def test_an_abort_frees_what_is_held(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(LengthRequest("a", 18, 50, stage=Stage.PREFILL))
    run(engine)
    assert engine.abort("a")
    assert not engine.abort("a")
    assert engine.kv_use == 0
    assert (engine.counters.finished, engine.counters.aborted) == (1, 0)


def test_a_decode_waits_for_its_kv_and_computes_the_last_token_of_its_prompt(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    (sequence,) = engine.add(decode("a", 18, 5))
    assert engine.take_reserved() == []
    assert engine.begin_step(3.0) is None
    assert engine.take_reserved() == [sequence]
    assert engine.take_reserved() == []
    assert (sequence.state, sequence.transfer_tokens, sequence.cached_tokens) == (SequenceState.RESERVED, 18, 0)
    assert (engine.running, engine.waiting, engine.kv_use) == (0, 1, 5 / 64)
    # Nobody can reuse blocks whose contents are not there.
    assert engine.cached_hashes() == engine.take_events() == []
    assert engine.idle

    assert engine.fetched(sequence, 17)
    assert not engine.fetched(sequence, 17)
    assert not engine.idle
    step = engine.begin_step(40.0)
    assert step is not None
    assert (step.batch.decodes, step.batch.prefill_tokens) == (0, 1)
    first = engine.finish_step(50.0)
    (stored,) = first.events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == hashes(100, 4)
    assert (first.first, sequence.generated) == ([sequence], 1)
    results = run(engine)
    assert [result.finished for result in results][-1] == [sequence]
    assert sequence.generated == 5
    counters = engine.counters
    assert (counters.prompt_tokens_transferred, counters.prompt_tokens_computed) == (17, 1)
    assert counters.generated_tokens == 5
    assert engine.kv_use == 0


def test_what_is_cached_need_not_be_moved(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(LengthRequest("before", 12, 1, hashes(100, 3)))
    run(engine)
    (sequence,) = engine.add(decode("a", 18, 5))
    engine.begin_step(0)
    assert (sequence.transfer_tokens, sequence.cached_tokens) == (6, 12)
    engine.fetched(sequence, 17)
    run(engine)
    assert (engine.counters.prompt_tokens_cached, engine.counters.prompt_tokens_transferred) == (12, 5)
    assert sorted(engine.cached_hashes()) == list(hashes(100, 4))


def test_a_decode_that_finds_no_blocks_waits_for_them(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=10, max_model_len=40)
    engine.add(LengthRequest("old", 20, 4))
    engine.begin_step(0)
    engine.finish_step(1)
    (sequence,) = engine.add(decode("new", 24, 5))
    engine.begin_step(1, 10**9)
    assert engine.take_reserved() == []
    assert engine.finish_step(2).finished
    assert engine.begin_step(2) is None
    assert engine.take_reserved() == [sequence]


def test_one_that_is_gone_before_anybody_asked_is_not_reserved(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (sequence,) = engine.add(decode("a", 18, 5))
    engine.begin_step(0)
    assert engine.abort("a")
    assert engine.take_reserved() == []
    assert not engine.fetched(sequence, 17)
    assert (engine.kv_use, engine.waiting) == (0, 0)


@pytest.mark.parametrize("arrived", [False, True])
def test_an_abort_while_kv_is_on_its_way_frees_its_blocks(make_engine: MakeEngine, arrived: bool) -> None:
    engine = make_engine()
    (sequence,) = engine.add(decode("a", 18, 5))
    engine.begin_step(0)
    if arrived:
        engine.fetched(sequence, 17)
    assert engine.abort("a")
    assert (engine.kv_use, engine.waiting, engine.running) == (0, 0, 0)
    assert engine.begin_step(1) is None
    assert engine.cached_hashes() == (list(hashes(100, 4)) if arrived else [])


def test_kv_on_its_way_keeps_a_place(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    (sequence,) = engine.add(decode("a", 8, 5))
    engine.add(LengthRequest("b", 8, 50))
    engine.add(LengthRequest("c", 8, 50))
    engine.begin_step(0)
    assert (engine.running, engine.waiting) == (1, 2)
    engine.finish_step(1)
    engine.fetched(sequence, 7)
    engine.begin_step(1)
    assert (engine.running, engine.waiting) == (2, 1)


def test_a_preempted_decode_is_computed_anew_where_it_is(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=10, max_model_len=40, max_batched_tokens=64)
    engine.add(LengthRequest("old", 16, 20))
    engine.begin_step(0)
    engine.finish_step(1)
    (sequence,) = engine.add(decode("a", 18, 20))
    engine.begin_step(1)
    engine.fetched(sequence, 17)
    engine.finish_step(2)
    results = run(engine)
    assert sequence.preemptions >= 1
    assert sequence.generated == 20
    assert [s for result in results for s in result.first] == [sequence]
    assert [s for result in results for s, _ in result.resumed] == [sequence] * sequence.preemptions
    assert engine.counters.prompt_tokens_computed == 16 + 1
    assert engine.counters.generated_tokens == 20 + 20


def test_whoever_waits_for_held_blocks_is_served_once_they_are_free(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=10, max_model_len=40)
    engine.add(LengthRequest("held", 20, 5, stage=Stage.PREFILL))
    run(engine)
    engine.add(LengthRequest("next", 30, 5))
    assert engine.begin_step(0) is None
    assert not engine.idle
    engine.release_held("held")
    assert engine.begin_step(0) is not None


def test_both_stages_take_the_decoding_time_of_the_whole(make_engine: MakeEngine) -> None:
    """Without anybody else the tokens after the first take as long as on one engine."""

    def decoding_ms(engine: EngineModel, request: LengthRequest, *, moved: bool) -> float:
        (sequence,) = engine.add(request)
        engine.begin_step(0)
        if moved:
            engine.fetched(sequence, request.prompt_tokens - 1)
            engine.begin_step(0)
        engine.finish_step(0)
        step = engine.begin_step(0, 10**9)
        assert step is not None
        assert engine.finish_step(step.duration_ms).finished == [sequence]
        assert sequence.generated == request.output_tokens
        return step.duration_ms

    whole = decoding_ms(make_engine(), LengthRequest("a", 21, 30), moved=False)
    split = decoding_ms(make_engine(), LengthRequest("a", 21, 30, stage=Stage.DECODE), moved=True)
    assert whole == split


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (LengthRequest("x", 0, 1), "empty"),
        (LengthRequest("x", 128, 1), "128 tokens; with max_model_len 128 there is no room for an answer"),
        (LengthRequest("x", 8, 0), "output_tokens is 0: at least one"),
        (LengthRequest("x", 11, 9, (1, 2, 3)), "3 block_hashes and 0 answer_hashes for a prompt that fills 2 blocks"),
        (LengthRequest("x", 11, 9, (1,), (2,)), "1 block_hashes and 1 answer_hashes"),
    ],
)
def test_what_can_not_be_computed_is_refused(make_engine: MakeEngine, request_: LengthRequest, message: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestRefusedError, match=message):
        engine.add(request_)
    assert engine.waiting == 0
