"""Many steps in one go bring what single steps bring; requests of lengths take as long as those of tokens."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.engine_model.block_hash import prompt_hashes, root_seed
from pointsman.core.engine_model.config import EngineConfig, TierConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import GPU, BlockRemoved, BlockStored, KvEvent
from pointsman.core.engine_model.request import EngineRequest, LengthRequest
from pointsman.core.engine_model.step import StepResult
from pointsman.core.timing.step import StepCoefficients

CONTEXT = 60
# No sum of these is a multiple of another: nothing happens at the end of a step by chance.
STEP = StepCoefficients(1.0137, 0.0719, 3.11, 0.0531, 0.00017)
GAP_MS = 0.61803398875


@dataclass(frozen=True)
class Ask:
    """A request, as yet without a form. Prompts of one family begin alike."""

    family: int
    prompt: int
    output: int
    hashed: bool = True


@dataclass(frozen=True)
class Event:
    gap: int
    ask: Ask | None = None
    abort: int | None = None


@dataclass
class Record:
    """What can be seen from outside."""

    first: dict[str, float] = field(default_factory=dict)
    finished: dict[str, float] = field(default_factory=dict)
    tokens: list[tuple[str, int]] = field(default_factory=list)
    changes: dict[str, list[object]] = field(default_factory=dict)
    """By medium."""
    uses: list[float] = field(default_factory=list)
    lengths: list[tuple[str, int, int]] = field(default_factory=list)
    resumed: list[tuple[str, float]] = field(default_factory=list)
    runs: int = 0
    decoded: int = 0


def as_tokens(number: int, ask: Ask, size: int) -> EngineRequest:
    return EngineRequest(str(number), [100 * ask.family + i for i in range(ask.prompt)], ask.output)


def as_lengths(number: int, ask: Ask, size: int) -> LengthRequest:
    """With hashes for the prompt and for the answer, which nobody else gives."""
    if not ask.hashed:
        return LengthRequest(str(number), ask.prompt, ask.output)
    full = ask.prompt // size
    all_blocks = min(ask.prompt + ask.output, CONTEXT) // size
    block_hashes = tuple(1000 * ask.family + i for i in range(full))
    answer = tuple(10_000 + 100 * number + i for i in range(all_blocks - full))
    return LengthRequest(str(number), ask.prompt, ask.output, block_hashes, answer)


def add_changes(changes: dict[str, list[object]], events: Sequence[KvEvent]) -> None:
    """One change a block: how many come or go at once is no matter, nor when a tier hears of what the GPU lost."""
    for event in events:
        if isinstance(event, BlockRemoved):
            changes.setdefault(event.medium, []).extend(("removed", key) for key in event.block_hashes)
        elif isinstance(event, BlockStored) and event.medium != GPU:
            changes.setdefault(event.medium, []).extend(("stored", key) for key in event.block_hashes)
        else:
            changes.setdefault(GPU, []).append(event)


def drive(config: EngineConfig, form: object, story: Sequence[Event], most_steps: int) -> tuple[Record, EngineModel]:
    engine, record = EngineModel(config), Record()
    end_ms: float | None = None
    now_ms = 0.0
    asked = itertools.count()

    def finish(at_ms: float) -> None:
        result: StepResult = engine.finish_step(at_ms)
        record.first.update({s.request.id: at_ms for s in result.first})
        record.finished.update({s.request.id: at_ms for s in result.finished})
        record.tokens += [(s.request.id, token) for s, token in result.tokens]
        record.resumed += [(s.request.id, gap_ms) for s, gap_ms in result.resumed]
        record.decoded += result.steps * result.decodes + len(result.first) + len(result.resumed)
        add_changes(record.changes, result.events)
        begin(at_ms)

    def begin(at_ms: float) -> None:
        nonlocal end_ms
        step = engine.begin_step(at_ms, most_steps)
        end_ms = None if step is None else at_ms + step.duration_ms
        record.runs += step is not None

    began_ms = 0.0
    for event in story:
        now_ms += event.gap * GAP_MS
        while end_ms is not None and end_ms <= now_ms:
            began_ms = end_ms
            finish(end_ms)
        if event.gap % 2:
            engine.look(now_ms)
        elif engine.in_step:
            assert end_ms is not None
            cut_ms = engine.cut_step(now_ms)
            assert began_ms + cut_ms >= now_ms - 1e-6
            end_ms = began_ms + cut_ms
        record.uses.append(engine.kv_use)
        record.lengths += [(s.request.id, s.length, s.blocks) for s in engine.requests()]
        if event.gap % 2:
            continue
        if event.ask is not None:
            engine.add(form(next(asked), event.ask, config.block_size))  # type: ignore[operator]
        if event.abort is not None:
            engine.abort(str(event.abort))
        if not engine.in_step:
            began_ms = now_ms
            begin(now_ms)
    while end_ms is not None:
        began_ms = end_ms
        finish(end_ms)
    assert engine.idle
    return record, engine


asks = st.builds(Ask, st.integers(0, 2), st.integers(1, CONTEXT - 1), st.integers(1, 40), st.booleans())
stories = st.lists(
    st.builds(Event, st.integers(0, 30), st.none() | asks, st.none() | st.integers(0, 12)), min_size=1, max_size=25
)


@st.composite
def configs(draw: st.DrawFn) -> EngineConfig:
    size = draw(st.sampled_from([1, 3, 4, 16]))
    seqs = draw(st.integers(1, 6))
    tiers = draw(st.sampled_from([(), (TierConfig("CPU", 7, 0.31, 0.17),)]))
    caching = draw(st.booleans()) or bool(tiers)
    return EngineConfig(
        step=STEP,
        num_blocks=-(-CONTEXT // size) + draw(st.integers(0, 60 // size)),
        block_size=size,
        max_num_seqs=seqs,
        max_batched_tokens=draw(st.integers(seqs, 70)),
        max_model_len=CONTEXT,
        prefix_caching=caching,
        tiers=tiers,
    )


def same(one: Record, other: Record) -> None:
    assert one.first == pytest.approx(other.first, rel=1e-9)
    assert one.finished == pytest.approx(other.finished, rel=1e-9)
    assert one.tokens == other.tokens
    assert one.changes == other.changes
    assert one.uses == other.uses
    assert one.lengths == other.lengths
    assert [key for key, _ in one.resumed] == [key for key, _ in other.resumed]
    assert [gap_ms for _, gap_ms in one.resumed] == pytest.approx([gap_ms for _, gap_ms in other.resumed], rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(configs(), stories, st.sampled_from([as_tokens, as_lengths]), st.sampled_from([3, 10**9]))
def test_runs_of_steps_equal_single_steps(
    config: EngineConfig, story: list[Event], form: object, most_steps: int
) -> None:
    single, engine = drive(config, form, story, 1)
    fast, fast_engine = drive(config, form, story, most_steps)
    same(single, fast)
    assert fast_engine.counters == engine.counters
    assert fast_engine.preemptions == engine.preemptions
    assert sorted(fast_engine.cached_hashes()) == sorted(engine.cached_hashes())
    assert fast_engine.tier_hashes() == engine.tier_hashes()
    assert fast_engine.kv_use == engine.kv_use == 0
    assert fast.runs <= single.runs
    if not fast_engine.counters.aborted:
        assert fast.decoded == fast_engine.counters.generated_tokens


@settings(max_examples=50, deadline=None)
@given(configs(), stories)
def test_lengths_take_as_long_as_tokens(config: EngineConfig, story: list[Event]) -> None:
    """The hashes of all blocks are those that the tokens have, the generated ones included."""
    tokens, engine = drive(config, as_tokens, story, 10**9)
    contents: dict[str, list[int]] = {}
    for key, token in tokens.tokens:
        contents.setdefault(key, []).append(token)

    def form(number: int, ask: Ask, size: int) -> LengthRequest:
        prompt = [100 * ask.family + i for i in range(ask.prompt)]
        # What an abort cut off is made up: it fills no block that somebody sees.
        answer = contents.get(str(number), [])
        answer = answer + [7] * (ask.output - len(answer))
        hashes = prompt_hashes(array("I", prompt + answer), size, root_seed(None, None))
        full = ask.prompt // size
        return LengthRequest(str(number), ask.prompt, ask.output, tuple(hashes[:full]), tuple(hashes[full:]))

    lengths, other = drive(config, form, story, 10**9)
    assert lengths.first == pytest.approx(tokens.first, rel=1e-9)
    assert lengths.finished == pytest.approx(tokens.finished, rel=1e-9)
    assert lengths.uses == tokens.uses
    assert lengths.lengths == tokens.lengths
    assert sorted(other.cached_hashes()) == sorted(engine.cached_hashes())
    assert other.counters == engine.counters


def test_a_preempted_sequence_is_tried_again_in_the_next_step() -> None:
    """What it loses is enough for its first chunk: a run that went on would leave it standing."""
    config = EngineConfig(
        step=STEP, num_blocks=10, block_size=4, max_num_seqs=2, max_batched_tokens=4, max_model_len=40
    )
    story = [Event(0, Ask(0, 14, 26)), Event(0, Ask(1, 14, 26, hashed=False))]
    single, engine = drive(config, as_lengths, story, 1)
    fast, _ = drive(config, as_lengths, story, 10**9)
    assert engine.preemptions
    same(single, fast)


def test_an_undisturbed_answer_takes_one_run() -> None:
    config = EngineConfig(step=STEP, num_blocks=64, max_model_len=1024)
    story = [Event(0, Ask(0, 59, 40)), Event(0, Ask(1, 30, 10))]
    record, engine = drive(config, as_lengths, story, 10**9)
    # The first prompt, the second one beside a decode, until the shorter answer ends, then until the longer one does.
    assert record.runs == 4
    assert engine.counters.steps == 40


def test_a_run_lasts_as_long_as_its_steps() -> None:
    config = EngineConfig(step=StepCoefficients(10, 1, 100, 0), num_blocks=64, max_model_len=1024)
    engine = EngineModel(config)
    engine.add(LengthRequest("a", 8, 6))
    engine.begin_step(0)
    engine.finish_step(10)
    step = engine.begin_step(10, 10**9, slow=2.0)
    assert step is not None
    durations = [2 * (10 + 1 + 0.1 * context) for context in (9, 10, 11, 12, 13)]
    assert (step.steps, step.decodes) == (5, 1)
    assert step.duration_ms == pytest.approx(sum(durations))
    ends = [10 + sum(durations[:n]) for n in range(1, 6)]
    assert [step.begun_by(end - 0.01) for end in ends] == [1, 2, 3, 4, 5]
    assert [step.begun_by(end + 0.01) for end in ends] == [2, 3, 4, 5, 5]
    # What happens just when a step ends is in time for the next one.
    assert step.begun_by(ends[1] - 1e-9) == 2
    assert engine.cut_step(ends[2] - 0.5) == pytest.approx(sum(durations[:3]))
    assert engine.finish_step(ends[2]).steps == 3
    assert engine.requests()[0].generated == 4


def test_noise_lengthens_each_step_by_its_own_factor() -> None:
    config = EngineConfig(step=StepCoefficients(10, 1, 100, 0), num_blocks=64, max_model_len=1024)
    engine = EngineModel(config)
    engine.add(LengthRequest("a", 8, 6))
    noise = np.array([0.5, 2.0, 1.0, 1.5, 0.25, 3.0])
    first = engine.begin_step(0, 5, noise=noise)
    assert first is not None
    assert (first.duration_ms, first.each_ms(1)) == (5.0, None)
    engine.finish_step(5)
    step = engine.begin_step(5, 5, noise=noise[1:])
    assert step is not None
    durations = [(10 + 1 + 0.1 * context) * factor for context, factor in zip(range(9, 14), noise[1:], strict=True)]
    assert step.duration_ms == pytest.approx(sum(durations))
    assert step.each_ms(3) == pytest.approx(durations[:3])
    ends = [5 + sum(durations[:n]) for n in range(1, 6)]
    assert [step.begun_by(end - 0.01) for end in ends] == [1, 2, 3, 4, 5]
    assert [step.begun_by(end + 0.01) for end in ends] == [2, 3, 4, 5, 5]
    assert engine.cut_step(ends[2] - 0.5) == pytest.approx(sum(durations[:3]))
    assert step.begun_by(ends[4]) == 3


def test_steps_that_grow_are_told_apart() -> None:
    engine = EngineModel(EngineConfig(step=StepCoefficients(10, 0, 100, 0), num_blocks=64, max_model_len=1024))
    engine.add(LengthRequest("a", 8, 201))
    engine.begin_step(0)
    engine.finish_step(10)
    step = engine.begin_step(10, 10**9)
    assert step is not None
    durations = [10 + 0.1 * context for context in range(9, 209)]
    told = [length_ms for length_ms, count in step.lengths(200) for _ in range(count)]
    assert told == pytest.approx(durations, rel=0.01)
    assert sum(told) == pytest.approx(sum(durations))


def test_time_stands_still_in_an_instant_engine() -> None:
    engine = EngineModel(EngineConfig(step=StepCoefficients(0, 0, 0, 0), num_blocks=64, max_model_len=1024))
    engine.add(LengthRequest("a", 8, 6))
    engine.begin_step(0)
    engine.finish_step(0)
    step = engine.begin_step(0, 10**9)
    assert step is not None
    assert step.steps == 5
    assert engine.cut_step(0) == 0
    assert step.steps in (1, 5)


def test_a_run_has_to_be_cut_before_one_of_it_is_aborted() -> None:
    engine = EngineModel(EngineConfig(step=STEP, num_blocks=64, max_model_len=1024))
    engine.add(LengthRequest("a", 8, 50))
    engine.begin_step(0)
    engine.finish_step(1)
    engine.begin_step(1, 10**9)
    with pytest.raises(RuntimeError, match="cut it first"):
        engine.abort("a")
    engine.cut_step(9)
    assert engine.abort("a")
    assert engine.kv_use == 0
    assert engine.finish_step(10).finished == []


def test_a_cut_needs_a_step() -> None:
    engine = EngineModel(EngineConfig(step=STEP, num_blocks=64, max_model_len=1024))
    with pytest.raises(RuntimeError, match="no step has begun"):
        engine.cut_step(0)
