"""A real engine is measured, and predicted where it was not measured."""

from __future__ import annotations

import random

import pytest

from pointsman.app.calibration.fit import fit
from pointsman.app.calibration.probe import Probe
from pointsman.app.calibration.probe_plan import probe_plan
from pointsman.app.calibration.quality import judge
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.engines.timed_completion import CompletionClient

pytestmark = pytest.mark.engines


async def test_vllm_is_measured(vllm, session):
    client = CompletionClient(session, vllm.url, "tiny", api_key=vllm.key)
    plan = probe_plan(most_prompt_tokens=1024, most_sequences=4, most_tokens=12_000)
    probe = Probe(client, plan, random.Random(0), most_s=120)
    await probe.run()
    measured = probe.measured()
    engine = EngineConfig(step=StepCoefficients(0, 0, 0, 0), num_blocks=300, block_size=32, max_model_len=4096)
    solution = fit((measured,), engine)
    quality = judge(solution, (measured,))

    assert len(measured) == plan.requests
    assert solution.parameters.step.a_ms > 0.1
    assert quality.held_out_tpot is not None
    # Two cores that other tests use, too: half of the predictions are close, whatever the worst ones are.
    assert quality.held_out_tpot.p50 < 30
    assert quality.held_out_ttft is not None
    assert quality.held_out_ttft.p50 < 40
