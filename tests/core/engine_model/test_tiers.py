"""Tiers below the GPU: what is evicted goes down and can be loaded again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.engine_model.config import EngineConfig, TierConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import AllBlocksCleared, BlockRemoved, BlockStored
from pointsman.core.engine_model.request import EngineRequest, LengthRequest
from pointsman.core.engine_model.step import StepResult
from pointsman.core.engine_model.tiers import Tiers
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients

MakeEngine = Callable[..., EngineModel]
Run = Callable[[EngineModel], list[StepResult]]

HOST, DISK = TierConfig("CPU", 3, 2.0, 0.5), TierConfig("DISK", 2, 10.0, 4.0)


def test_the_least_recently_used_goes_further_down_and_is_lost_at_the_end() -> None:
    tiers = Tiers((HOST, DISK))
    assert tiers.put([1, 2, 3]) == [BlockStored((1, 2, 3), None, (), 0, medium="CPU")]
    assert tiers.put([4]) == [
        BlockStored((4,), None, (), 0, medium="CPU"),
        BlockRemoved((1,), medium="CPU"),
        BlockStored((1,), None, (), 0, medium="DISK"),
    ]
    tiers.put([5, 6])
    assert tiers.hashes() == {"CPU": [4, 5, 6], "DISK": [2, 3]}
    assert tiers.put([4]) == []
    assert tiers.hashes()["CPU"] == [5, 6, 4]


def test_a_look_up_stops_at_the_first_gap_and_loading_costs_by_tier() -> None:
    tiers = Tiers((HOST, DISK))
    tiers.put([1, 2, 3, 4])
    assert tiers.lookup([9, 1, 2, 3, 8, 4], 1, 6) == 3
    assert tiers.lookup([9, 1, 2, 3], 1, 3) == 2
    assert tiers.load_ms([1, 2, 3]) == (4.0 + 10.0) + (0.5 + 2 * 2.0)
    assert tiers.load_ms([]) == 0
    # Two of them were used just now.
    assert tiers.hashes()["CPU"] == [4, 2, 3]


def test_an_evicted_prefix_is_loaded_instead_of_computed(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(
        num_blocks=8, max_model_len=32, tiers=(TierConfig("CPU", 20, 2.0, 0.5),), step=StepCoefficients(10, 0, 0, 1)
    )
    engine.add(LengthRequest("a", 18, 1, (1, 2, 3, 4)))
    engine.add(LengthRequest("b", 30, 1, (11, 12, 13, 14, 15, 16, 17)))
    events = [event for result in run(engine) for event in result.events]
    assert BlockRemoved((4, 3, 2, 1)) in events
    assert BlockStored((4, 3, 2, 1), None, (), 0, medium="CPU") in events
    (again,) = engine.add(LengthRequest("c", 18, 1, (1, 2, 3, 4)))
    step = engine.begin_step(0)
    assert step is not None
    assert again.cached_tokens == 16
    assert step.duration_ms == 10 + 2 * 1 + 0.5 + 4 * 2.0
    (*_, stored) = engine.finish_step(1).events
    assert stored == BlockStored((1, 2, 3, 4), None, (), 4)
    # They are on both, so that the next eviction moves nothing.
    assert {1, 2, 3, 4} <= set(engine.cached_hashes())
    assert {1, 2, 3, 4} <= set(engine.tier_hashes()["CPU"])


def test_real_tokens_are_loaded_with_the_same_answer(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32, tiers=(TierConfig("CPU", 20, 2.0),))
    (first,) = engine.add(EngineRequest("a", list(range(18)), 4))
    run(engine)
    engine.add(EngineRequest("b", list(range(50, 80)), 1))
    run(engine)
    (again,) = engine.add(EngineRequest("c", list(range(18)), 4))
    run(engine)
    assert again.cached_tokens == 16
    assert again.tokens == first.tokens  # type: ignore[attr-defined]


def test_the_tiers_are_cleared_with_the_cache(make_engine: MakeEngine, run: Run) -> None:
    engine = make_engine(num_blocks=8, max_model_len=32, tiers=(HOST,))
    for number in range(3):
        engine.add(LengthRequest(str(number), 18, 1, tuple(range(10 * number, 10 * number + 4))))
    run(engine)
    assert engine.tier_hashes()["CPU"]
    assert engine.reset_prefix_cache()
    assert engine.take_events() == [AllBlocksCleared()]
    assert engine.tier_hashes() == {"CPU": []}


def test_without_tiers_there_are_none(make_engine: MakeEngine) -> None:
    assert make_engine().tier_hashes() == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TierConfig("CPU", 0, 1.0), "tier CPU: blocks must be at least 1, not 0"),
        (lambda: TierConfig("CPU", 1, -1.0), "must not be negative"),
        (lambda: TierConfig("CPU", 1, 1.0, float("nan")), "must not be negative"),
        (lambda: _config(tiers=(HOST, HOST)), "different names"),
        (lambda: _config(tiers=(TierConfig("GPU", 1, 1.0),)), "other than GPU"),
        (lambda: _config(tiers=(HOST,), prefix_caching=False), "need prefix_caching"),
    ],
)
def test_tiers_that_can_not_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def _config(**values: object) -> EngineConfig:
    sizes: dict[str, object] = {"step": StepCoefficients(0, 0, 0, 0), "num_blocks": 600}
    return EngineConfig(**{**sizes, **values})  # type: ignore[arg-type]
