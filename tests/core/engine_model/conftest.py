from __future__ import annotations

from collections.abc import Callable

import pytest

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.step import StepResult
from pointsman.core.timing.step import StepCoefficients


@pytest.fixture
def make_engine() -> Callable[..., EngineModel]:
    def make(**overrides: object) -> EngineModel:
        values: dict[str, object] = {
            "step": StepCoefficients(10.0, 1.0, 0.0, 0.1),
            "num_blocks": 64,
            "block_size": 4,
            "max_num_seqs": 8,
            "max_batched_tokens": 32,
            "max_model_len": 128,
        }
        return EngineModel(EngineConfig(**{**values, **overrides}))  # type: ignore[arg-type]

    return make


@pytest.fixture
def run() -> Callable[..., list[StepResult]]:
    """Runs steps until an engine is idle, in modelled time from 0."""

    def run_engine(engine: EngineModel, limit: int = 10_000) -> list[StepResult]:
        now_ms, results = 0.0, []
        for _ in range(limit):
            step = engine.begin_step(now_ms)
            if step is None:
                return results
            now_ms += step.duration_ms
            results.append(engine.finish_step(now_ms))
        raise AssertionError(f"not idle after {limit} steps")

    return run_engine
