from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.events import AllBlocksCleared, BlockRemoved, BlockStored
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients

MakeEngine = Callable[..., EngineModel]
Run = Callable[[EngineModel], list[StepResult]]


def prompt(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))


def test_exactly_max_tokens_come_out(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    (sequence,) = engine.add(EngineRequest("a", prompt(10), 7))
    results = run(engine)
    assert sum(len(result.tokens) for result in results) == 7
    assert [result.finished for result in results if result.finished] == [[sequence]]
    assert sequence.state is SequenceState.FINISHED
    assert (engine.running, engine.waiting, engine.kv_use) == (0, 0, 0.0)


def test_the_context_ends_an_answer_early(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(max_model_len=16)
    (sequence,) = engine.add(EngineRequest("a", prompt(10), 100))
    run(engine)
    assert sequence.generated == 6


def test_a_continuation_goes_on_with_the_same_tokens(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    (whole,) = engine.add(EngineRequest("whole", prompt(9), 20))
    run(engine)
    answer = list(whole.tokens[9:])
    (rest,) = engine.add(EngineRequest("rest", prompt(9) + answer[:5], 15))
    run(engine)
    assert list(rest.tokens[14:]) == answer[5:]
    assert rest.cached_tokens == 12


def test_prompts_are_computed_in_chunks_within_the_budget(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batched_tokens=32)
    engine.add(EngineRequest("long", prompt(50), 3))
    first = engine.begin_step(0)
    assert first is not None
    assert (first.batch.prefill_tokens, first.batch.decodes) == (32, 0)
    assert engine.finish_step(1).tokens == []
    second = engine.begin_step(1)
    assert second is not None
    assert second.batch.prefill_tokens == 18
    assert len(engine.finish_step(2).tokens) == 1


def test_decodes_come_before_the_prefill_of_a_new_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batched_tokens=32)
    engine.add(EngineRequest("old", prompt(8), 10))
    engine.begin_step(0)
    engine.finish_step(1)
    engine.add(EngineRequest("new", prompt(60, 100), 10))
    step = engine.begin_step(1)
    assert step is not None
    assert (step.batch.decodes, step.batch.prefill_tokens) == (1, 31)
    assert step.batch.context_tokens == 9


def test_a_step_lasts_as_long_as_the_formula_says(make_engine: MakeEngine) -> None:
    engine = make_engine(step=StepCoefficients(10.0, 1.0, 100.0, 0.5))
    engine.add(EngineRequest("a", prompt(8), 10))
    first = engine.begin_step(0)
    assert first is not None
    assert first.duration_ms == pytest.approx(10 + 8 * 0.5)
    engine.finish_step(first.duration_ms)
    second = engine.begin_step(20)
    assert second is not None
    assert second.duration_ms == pytest.approx(10 + 1 + 100 * 9 / 1000)


def test_attention_within_a_prompt_costs_by_its_squares_however_it_is_cut(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(step=StepCoefficients(0.0, 0.0, 0.0, 0.0, 0.01), max_batched_tokens=32)
    engine.add(EngineRequest("a", prompt(50), 1))
    durations = []
    while (step := engine.begin_step(0)) is not None:
        durations.append(step.duration_ms)
        engine.finish_step(0)
    assert durations == pytest.approx([0.01 * 32**2, 0.01 * (50**2 - 32**2)])
    engine.add(EngineRequest("b", prompt(50), 1))
    step = engine.begin_step(0)
    assert step is not None
    # 48 tokens are cached.
    assert step.duration_ms == pytest.approx(0.01 * (50**2 - 48**2))


def test_a_second_request_reuses_full_blocks_but_computes_its_last_token(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(block_size=4)
    engine.add(EngineRequest("a", prompt(16), 1))
    run(engine)
    (second,) = engine.add(EngineRequest("b", prompt(16), 1))
    run(engine)
    assert second.cached_tokens == 12
    assert engine.counters.prompt_tokens_cached == 12
    assert engine.counters.prompt_tokens_computed == 16 + 4


def test_generated_blocks_are_reusable(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(block_size=4)
    (first,) = engine.add(EngineRequest("a", prompt(6), 8))
    run(engine)
    (second,) = engine.add(EngineRequest("b", [*first.tokens, 1, 2], 1))
    run(engine)
    # 14 tokens, the last one was never computed: three full blocks.
    assert second.cached_tokens == 12


def test_sequences_of_one_request_share_the_prompt(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(block_size=4, max_batched_tokens=64)
    first, second, third = engine.add(EngineRequest("a", prompt(17), 6, sequences=3))
    engine.begin_step(0)
    assert first.keys == second.keys == third.keys == list(first.hashes)
    assert (first.blocks, second.blocks, third.blocks) == (5, 5, 5)
    assert engine.kv_use == 7 / 64
    engine.finish_step(1)
    run(engine)
    assert [s.generated for s in (first, second, third)] == [6, 6, 6]
    assert first.tokens != second.tokens


def test_salt_and_adapter_keep_prompts_apart(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    cached = []
    requests = [
        EngineRequest("plain", prompt(12), 1),
        EngineRequest("lora", prompt(12), 1, lora_name="ad"),
        EngineRequest("salt", prompt(12), 1, cache_salt="s"),
        EngineRequest("again", prompt(12), 1, lora_name="ad"),
    ]
    for request in requests:
        (sequence,) = engine.add(request)
        run(engine)
        cached.append(sequence.cached_tokens)
    assert cached == [0, 0, 0, 8]


def test_without_prefix_cache_nothing_is_reused_and_nothing_announced(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(prefix_caching=False)
    for name in ("a", "b"):
        engine.add(EngineRequest(name, prompt(20), 9))
    results = run(engine)
    assert all(not result.events for result in results)
    assert engine.counters.prompt_tokens_cached == 0
    assert engine.cached_hashes() == []


def test_the_youngest_is_preempted_and_recomputed_to_the_same_answer(make_engine: MakeEngine, run: Run) -> None:
    roomy = make_engine(max_batched_tokens=64)
    (expected,) = roomy.add(EngineRequest("b", prompt(8, 50), 16))
    run(roomy)
    engine = make_engine(num_blocks=8, max_model_len=32, block_size=4, max_batched_tokens=64)
    (old,) = engine.add(EngineRequest("a", prompt(8), 16))
    (young,) = engine.add(EngineRequest("b", prompt(8, 50), 16))
    run(engine)
    assert engine.preemptions >= 1
    assert old.preemptions == 0
    assert young.preemptions == engine.preemptions
    assert (old.generated, young.generated) == (16, 16)
    assert young.tokens == expected.tokens
    assert engine.counters.prompt_tokens_computed + engine.counters.prompt_tokens_cached == 16


def test_a_preempted_sequence_goes_before_those_that_have_not_begun(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32, block_size=4, max_batched_tokens=64, max_num_seqs=2)
    engine.add(EngineRequest("a", prompt(8), 16))
    engine.add(EngineRequest("b", prompt(8, 50), 16))
    engine.add(EngineRequest("c", prompt(4, 90), 1))
    while not engine.preemptions:
        engine.begin_step(0)
        engine.finish_step(0)
    assert [sequence.request.id for sequence in engine.requests()] == ["a", "b", "c"]
    assert (engine.running, engine.waiting) == (1, 2)
    run(engine)
    assert engine.counters.finished == 3


def test_waiting_requests_are_admitted_in_their_order(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=2)
    for name in "abcd":
        engine.add(EngineRequest(name, prompt(4), 2))
    order = []
    while not engine.idle:
        engine.begin_step(0)
        order += [sequence.request.id for sequence in engine.finish_step(0).finished]
    assert order == ["a", "b", "c", "d"]


@pytest.mark.parametrize("when", ["waiting", "in a step", "between steps"])
def test_an_abort_frees_everything(make_engine: MakeEngine, run: Run, when: str) -> None:
    engine = make_engine()
    engine.add(EngineRequest("gone", prompt(20), 50, sequences=2))
    engine.add(EngineRequest("stays", prompt(6, 90), 3))
    if when != "waiting":
        engine.begin_step(0)
    if when == "between steps":
        engine.finish_step(1)
    assert engine.abort("gone")
    assert not engine.abort("gone")
    if when == "in a step":
        assert {s.request.id for s, _ in engine.finish_step(1).tokens} <= {"stays"}
    run(engine)
    assert (engine.running, engine.waiting, engine.kv_use) == (0, 0, 0.0)
    assert (engine.counters.aborted, engine.counters.finished) == (2, 1)
    assert engine.requests() == []


def test_one_answer_can_be_aborted_alone(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    first, second = engine.add(EngineRequest("a", prompt(5), 9, sequences=2))
    engine.begin_step(0)
    engine.finish_step(1)
    assert engine.abort_sequence(first)
    assert not engine.abort_sequence(first)
    run(engine)
    assert (first.state, second.state) == (SequenceState.ABORTED, SequenceState.FINISHED)
    assert second.generated == 9


def test_stored_events_name_parent_tokens_and_hashes(make_engine: MakeEngine) -> None:
    engine = make_engine(block_size=4)
    (sequence,) = engine.add(EngineRequest("a", prompt(10), 3, lora_name="ad", cache_salt="pepper"))
    engine.begin_step(0)
    (stored,) = engine.finish_step(1).events
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == tuple(sequence.hashes[:2])
    assert (stored.parent_block_hash, stored.block_size) == (None, 4)
    assert stored.token_ids == tuple(range(8))
    assert (stored.lora_name, stored.cache_salt) == ("ad", "pepper")
    later = []
    while not engine.idle:
        engine.begin_step(1)
        later += engine.finish_step(2).events
    (next_stored,) = later
    assert isinstance(next_stored, BlockStored)
    assert next_stored.parent_block_hash == stored.block_hashes[1]
    assert next_stored.token_ids == (8, 9, *sequence.tokens[10:12])
    assert next_stored.cache_salt is None


def test_events_follow_the_cached_set(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32)
    known: set[int] = set()
    for number in range(6):
        engine.add(EngineRequest(str(number), prompt(14, 100 * (number % 4)), 6))
        for result in run(engine):
            for event in result.events:
                if isinstance(event, BlockStored):
                    known.update(event.block_hashes)
                elif isinstance(event, BlockRemoved):
                    known.difference_update(event.block_hashes)
    assert known == set(engine.cached_hashes())
    assert engine.reset_prefix_cache()
    assert engine.take_events() == [AllBlocksCleared()]
    assert engine.take_events() == []


def test_the_cache_is_not_reset_under_running_sequences(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add(EngineRequest("a", prompt(8), 4))
    engine.begin_step(0)
    assert not engine.reset_prefix_cache()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (EngineRequest("x", [], 1), "empty"),
        (EngineRequest("x", list(range(128)), 1), "128 tokens; with max_model_len 128"),
        (EngineRequest("x", [1], 0), "at least 1"),
        (EngineRequest("x", [1], 1, sequences=0), "at least 1"),
        (EngineRequest("taken", [1], 1), "'taken' is in use"),
    ],
)
def test_what_can_not_be_computed_is_refused(make_engine: MakeEngine, request_: EngineRequest, message: str) -> None:
    engine = make_engine()
    engine.add(EngineRequest("taken", [1], 1))
    with pytest.raises(RequestRefusedError, match=message):
        engine.add(request_)
    assert engine.waiting == 1


def test_steps_can_not_overlap(make_engine: MakeEngine) -> None:
    engine = make_engine()
    with pytest.raises(RuntimeError, match="no step"):
        engine.finish_step(0)
    assert engine.begin_step(0) is None
    engine.add(EngineRequest("a", [1], 1))
    engine.begin_step(0)
    with pytest.raises(RuntimeError, match="finish it first"):
        engine.begin_step(0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"max_num_seqs": 64, "max_batched_tokens": 32}, "max_batched_tokens"),
        ({"max_model_len": 1000}, "more than the KV cache holds"),
        ({"output_ids": ()}, "output_ids is empty"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(overrides: dict[str, object], message: str) -> None:
    values = {"step": StepCoefficients(0, 0, 0, 0), "num_blocks": 8, "max_model_len": 64, **overrides}
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**values)  # type: ignore[arg-type]
