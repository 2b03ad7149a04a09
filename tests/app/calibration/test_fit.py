"""The fit finds the speed of engines that have nothing to do with those it was developed on."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from pointsman.app.calibration.fit import fit
from pointsman.app.calibration.measurement import Measurement
from pointsman.app.calibration.objective import Objective
from pointsman.app.calibration.parameters import Parameters
from pointsman.app.calibration.quality import judge
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.step import StepCoefficients

Observe = Callable[..., Measurement]

DENSE = StepCoefficients(13.8, 0.05, 0.063, 0.0485)
MIXTURE = StepCoefficients(19.0, 0.23, 0.06, 0.0314)
CPU = StepCoefficients(23.8, 1.86, 0.5, 1.5)


def decode_ms(step: StepCoefficients, sequences: int, context_tokens: int) -> float:
    return step.step_ms(sequences, sequences * context_tokens, 0)


@pytest.mark.parametrize(
    ("step", "rate_s", "sequences", "prompt_tokens"),
    [(DENSE, 2.0, 4, 500), (DENSE, 20.0, 32, 500), (MIXTURE, 6.0, 12, 1500), (CPU, 0.3, 2, 500)],
    ids=["dense-light", "dense-overloaded", "mixture", "cpu"],
)
def test_step_times_are_found_at_the_loads_that_were_measured(
    observe: Observe, engine: EngineConfig, step: StepCoefficients, rate_s: float, sequences: int, prompt_tokens: int
) -> None:
    measured = observe(
        step, rate_s, 40, noise=0.05, outliers=0.002, cold_steps=1, ahead=True, prompt_tokens=prompt_tokens
    )
    found = fit((measured,), engine, ahead=True).parameters.step
    # One slow step among few is a part of what was measured: with this noise some fits are 8 % off.
    assert decode_ms(found, sequences, 500) == pytest.approx(decode_ms(step, sequences, 500), rel=0.1)
    assert found.d_ms_per_prefill_token == pytest.approx(step.d_ms_per_prefill_token, rel=0.1)


def test_prompts_alone_say_how_long_prompts_take(observe: Observe, engine: EngineConfig) -> None:
    # Answers of one token: with nothing else to compare, a replay that never gets anywhere must not look right.
    measured = observe(DENSE, 8.0, 60, prompt_tokens=1500, output_tokens=0.3, least_output=1, overhead_ms=0.1)
    assert measured.output_tokens.max() == 1
    solution = fit((measured,), engine)
    assert solution.parameters.step.step_ms(0, 0, 1000) == pytest.approx(DENSE.step_ms(0, 0, 1000), rel=0.03)
    residuals = solution.residuals
    assert (residuals.ttft_weight > 0).all()


def test_a_replay_that_is_far_too_slow_is_far_off(observe: Observe, engine: EngineConfig) -> None:
    objective = Objective((observe(DENSE, 6.0, 30, output_tokens=1, least_output=1),), engine, ahead=False)
    off = [float(np.abs(objective.residuals(Parameters(DENSE.scaled(slow))).ttft).mean()) for slow in (1, 3, 30, 300)]
    assert off == sorted(off)
    assert off[-1] > 2


def test_it_sees_whether_an_engine_schedules_ahead(observe: Observe, engine: EngineConfig) -> None:
    for ahead in (True, False):
        measured = observe(DENSE, 6.0, 25, noise=0.03, ahead=ahead)
        assert fit((measured,), engine, start=DENSE).ahead is ahead


def test_time_outside_the_engine_is_told_apart(observe: Observe, engine: EngineConfig) -> None:
    measured = observe(DENSE, 3.0, 40, noise=0.02, overhead_ms=30.0)
    found = fit((measured,), engine, start=DENSE, ahead=False).parameters
    assert found.overhead_ms == pytest.approx(30.0, rel=0.15)
    assert found.step.a_ms == pytest.approx(DENSE.a_ms, rel=0.06)


def test_a_start_that_is_wrong_by_three_does_not_matter(observe: Observe, engine: EngineConfig) -> None:
    measured = observe(DENSE, 6.0, 40, noise=0.03, ahead=True)
    wrong = StepCoefficients(40.0, 0.02, 0.2, 0.016)
    found = fit((measured,), engine, start=wrong, ahead=True).parameters.step
    assert decode_ms(found, 8, 500) == pytest.approx(decode_ms(DENSE, 8, 500), rel=0.06)
    assert found.d_ms_per_prefill_token == pytest.approx(DENSE.d_ms_per_prefill_token, rel=0.08)


def test_the_same_measurements_give_the_same_fit(observe: Observe, engine: EngineConfig) -> None:
    measured = observe(DENSE, 6.0, 12, noise=0.03, ahead=True)
    one, other = (fit((measured,), engine, start=DENSE, ahead=True).parameters for _ in range(2))
    assert one == other


def test_the_truth_has_no_errors(observe: Observe, engine: EngineConfig) -> None:
    for ahead in (True, False):
        measured = observe(DENSE, 6.0, 60, ahead=ahead)
        residuals = Objective((measured,), engine, ahead=ahead).residuals(Parameters(DENSE))
        assert np.abs(residuals.ttft).max() < 1e-9
        assert np.abs(residuals.tpot).max() < 1e-9
        assert (residuals.ttft_weight > 0).all()


def test_a_stall_counts_once(observe: Observe, engine: EngineConfig) -> None:
    measured = observe(DENSE, 6.0, 60, ahead=True)
    late = measured.arrival_ms >= measured.arrival_ms[30]
    stalled = Measurement(
        measured.requests,
        np.where(late, measured.first_ms + 5_000, measured.first_ms),
        np.where(measured.last_ms >= measured.arrival_ms[30], measured.last_ms + 5_000, measured.last_ms),
        in_engine=True,
    )
    found = fit((stalled,), engine, start=DENSE, ahead=True).parameters.step
    assert found.a_ms == pytest.approx(DENSE.a_ms, rel=0.1)


def test_what_could_not_be_learned_is_said(observe: Observe, engine: EngineConfig) -> None:
    measured = observe(DENSE, 0.5, 20, noise=0.03, ahead=True)  # hardly ever two at a time
    quality = judge(fit((measured,), engine, start=DENSE, ahead=True), (measured,), ["the first note"])
    text = "\n".join(quality.warnings)
    assert quality.warnings[0] == "the first note"
    assert "the measurements say little of b" in text or "b could not be separated from" in text
    assert "only 20 requests were measured" in text
    longest = max(request.prompt_tokens for request in measured.requests)
    assert f"do not use it for prompts over {longest:,} tokens" in text
    assert "fit is poor" not in text
    assert quality.held_out_tpot is not None
    assert quality.held_out_tpot.mape < 6
    factors = {one.name: one.factor for one in quality.coefficients}
    assert factors["b"] > 1.5 > factors["a"]


def test_sizes_that_are_wrong_make_a_poor_fit(observe: Observe, engine: EngineConfig) -> None:
    rng = np.random.default_rng(0)
    measured = observe(DENSE, 6.0, 30, ahead=True)
    scrambled = Measurement(
        measured.requests,
        measured.arrival_ms + rng.permutation(measured.first_ms - measured.arrival_ms) * np.exp(rng.normal(0, 1, 30)),
        measured.last_ms + 3_000 * rng.random(30) + 60_000,
        in_engine=True,
    )
    quality = judge(fit((scrambled,), engine, start=DENSE, ahead=True), (scrambled,))
    assert any("the fit is poor" in warning for warning in quality.warnings)


def test_intervals_hold_the_truth_about_as_often_as_they_say(observe: Observe, engine: EngineConfig) -> None:
    held = 0
    for seed in range(2):
        measured = observe(DENSE, 6.0, 25, noise=0.05, ahead=True, seed=seed)
        quality = judge(fit((measured,), engine, start=DENSE, ahead=True), (measured,))
        for one in quality.coefficients:
            truth = Parameters(DENSE).value(one.name)
            # The model errors that the least spreads allow for are not in here, so intervals are rather too wide.
            held += abs(math.log(one.value / truth)) <= math.log(one.factor) + 0.05
    assert held >= 6
