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


TRIES = 6


async def test_vllm_is_measured(vllm, session):
    plan = probe_plan(most_prompt_tokens=1024, most_sequences=4, most_tokens=12_000)
    engine = EngineConfig(step=StepCoefficients(0, 0, 0, 0), num_blocks=300, block_size=32, max_model_len=4096)
    errors = []
    for seed in range(TRIES):
        probe = Probe(
            CompletionClient(session, vllm.url, "tiny", api_key=vllm.key), plan, random.Random(seed), most_s=120
        )
        await probe.run()
        measured = probe.measured()
        solution = fit((measured,), engine)
        quality = judge(solution, (measured,))

        assert len(measured) == plan.requests
        assert quality.held_out_tpot is not None
        assert quality.held_out_ttft is not None
        errors.append((quality.held_out_tpot.p50, quality.held_out_ttft.p50, solution.parameters.step.a_ms))
        # Two cores that others use, too: half of the predictions are close, whatever the worst ones are, and a burst of
        # others' work during one of the probes says nothing.
        if errors[-1][0] < 30 and errors[-1][1] < 40 and errors[-1][2] > 0.1:
            return
    pytest.fail(f"held-out errors in % (TPOT, TTFT), and ms of an empty step, of each try: {errors}")
