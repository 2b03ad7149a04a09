"""The same without contents: a part of a prompt comes from another engine, which holds it meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.stage import Stage

MakeEngine = Callable[..., EngineModel]
Run = Callable[[EngineModel], list[StepResult]]
KEYS = (1, 2, 3, 4)
"""Of the four full blocks of a prompt of 18 tokens, at four tokens a block."""


def asked(key: str = "a", stage: Stage = Stage.WHOLE, *, fetches: bool = False) -> LengthRequest:
    return LengthRequest(key, 18, 4, KEYS, stage=stage, fetches=fetches)


def test_a_request_that_fetches_waits_for_its_beginning_and_computes_the_rest(
    make_engine: MakeEngine, run: Run
) -> None:
    engine = make_engine()
    (sequence,) = engine.add(asked(fetches=True))
    assert engine.begin_step(0.0) is None
    assert engine.take_reserved() == [sequence]
    assert sequence.transfer_tokens == 18
    assert engine.fetched(sequence, 12)
    run(engine)
    assert sequence.state is SequenceState.FINISHED
    assert sequence.generated == 4
    assert sequence.cached_tokens == 12
    assert engine.counters.prompt_tokens_computed == 6


def test_a_prompt_for_another_engine_may_fetch_its_beginning_too(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    (sequence,) = engine.add(asked(stage=Stage.PREFILL, fetches=True))
    engine.begin_step(0.0)
    engine.fetched(sequence, 8)
    run(engine)
    assert (sequence.generated, engine.held) == (1, 1)


def test_cached_blocks_are_held_as_far_as_is_asked_for(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(asked())
    run(engine)
    held = engine.hold(asked("b"), most_tokens=11)
    assert held is not None
    assert (held.still_computed, engine.kv_use * engine.config.num_blocks) == (8, 2)
    assert engine.hold(asked("c")).still_computed == 16  # type: ignore[union-attr]
    assert engine.release_held("b")
    assert engine.release_held("c")
    assert engine.kv_use == 0


def test_blocks_may_be_held_while_a_step_is_computed(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine()
    engine.add(asked())
    run(engine)
    engine.add(LengthRequest("other", 10, 5))
    engine.begin_step(0.0)
    assert engine.hold(asked("b"), 8) is not None
    engine.finish_step(1.0)
    run(engine)
    assert engine.release_held("b")
    assert engine.kv_use == 0


def test_what_is_not_cached_or_can_not_be_is_not_held(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.hold(asked()) is None
    assert engine.held == 0
    with pytest.raises(RequestRefusedError, match="empty"):
        engine.hold(LengthRequest("b", 0, 1))
