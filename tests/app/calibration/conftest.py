"""Engines whose speed is known: the engine model with noise, driven here by a loop of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pointsman.app.calibration.measurement import Measurement
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.timing.step import StepCoefficients
from pointsman.core.workload.trace import TraceRequest

ENGINE = EngineConfig(
    step=StepCoefficients(0, 0, 0, 0), num_blocks=4000, max_num_seqs=64, max_batched_tokens=2048, max_model_len=32_768
)

Observe = Callable[..., Measurement]


@pytest.fixture
def engine() -> EngineConfig:
    return ENGINE


@pytest.fixture
def observe() -> Observe:
    """`observe(step, rate_s, count, …)`: what an engine of that speed did with random requests."""
    return _observe


def _observe(
    step: StepCoefficients,
    rate_s: float,
    count: int,
    *,
    engine: EngineConfig = ENGINE,
    seed: int = 0,
    noise: float = 0.0,
    outliers: float = 0.0,
    cold_steps: int = 0,
    ahead: bool = False,
    overhead_ms: float = 0.0,
    prompt_tokens: int = 500,
    output_tokens: float = 60,
    least_output: int = 4,
) -> Measurement:
    rng = random.Random(seed)
    at_ms, requests = 0.0, []
    for _ in range(count):
        prompt = max(8, int(rng.lognormvariate(math.log(prompt_tokens), 0.7)))
        output = max(least_output, int(rng.lognormvariate(math.log(output_tokens), 0.4)))
        requests.append(TraceRequest(at_ms, prompt, output))
        at_ms += 1000 * rng.expovariate(rate_s)
    model = EngineModel(replace(engine, step=step))
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    now_ms, arrived, steps, left = 0.0, 0, 0, count
    while left:
        begun = model.begin_step(now_ms) if ahead and model.running else None
        while arrived < count and requests[arrived].at_ms <= now_ms:
            request = requests[arrived]
            model.add(LengthRequest(str(arrived), request.prompt_tokens, request.output_tokens))
            arrived += 1
        begun = begun or model.begin_step(now_ms)
        if begun is None:
            now_ms = requests[arrived].at_ms
            continue
        steps += 1
        factor = math.exp(rng.gauss(0, noise)) * (8 if steps <= cold_steps else 6 if rng.random() < outliers else 1)
        now_ms += begun.duration_ms * factor
        result = model.finish_step(now_ms)
        for sequence in result.first:
            first[int(sequence.request.id)] = now_ms + overhead_ms
        for sequence in result.finished:
            last[int(sequence.request.id)] = now_ms + overhead_ms
            left -= 1
    return Measurement(tuple(requests), first, last, in_engine=overhead_ms == 0)
