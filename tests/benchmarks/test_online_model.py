from __future__ import annotations

import os
import random

import pytest

import online_model
from harness.observed_engine import Job, poisson_jobs, serve
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.timing.prediction import Load, ttft_ms
from pointsman.core.timing.profiles import profile

OPTIONS = online_model.Options(requests=110, after=(0, 50))


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("rate", [0.5, 3.0])
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_fifty_requests_make_good_for_a_prior_wrong_by_three(live: bool, rate: float, factor: float) -> None:
    ended = online_model.simulated("h100/llama-70b-tp4", rate, OPTIONS, live=live)
    found = online_model.errors(ended, profile("h100/llama-70b-tp4").step.scaled(factor), OPTIONS.after)
    assert found["tpot"]["0"] > 60
    assert found["tpot"]["50"] <= 3.0


@pytest.mark.skipif(not os.environ.get("POINTSMAN_DATA"), reason="needs recorded runs: set POINTSMAN_DATA")
@pytest.mark.parametrize("run", list(online_model.RUNS))
@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_so_they_do_on_recorded_runs(run: str, factor: float) -> None:
    prior = profile(online_model.RUNS[run]).step.scaled(factor)
    found = online_model.errors(online_model.recorded(run), prior, (0, 50))
    assert found["tpot"]["0"] > 60
    assert found["tpot"]["50"] <= online_model.BAR_PERCENT


@pytest.mark.parametrize("report_every", [16, None])
@pytest.mark.parametrize("rate", [0.3, 2.0, 5.0])
def test_intervals_take_as_long_as_their_sums_say(report_every: int | None, rate: float) -> None:
    step = profile("h100/llama-70b-tp4").step
    jobs = poisson_jobs(random.Random(3), 80, rate, (100, 4000), (30, 300))
    served = serve(EngineConfig(step, num_blocks=40_000), jobs, report_every=report_every, overhead_ms=30.0)
    intervals = [interval for one in served for interval in one.intervals]
    assert len(intervals) >= 30
    ratios = sorted(interval.predicted_ms(step, 30.0) / interval.elapsed_ms for interval in intervals)
    assert sum(ratios) / len(ratios) == pytest.approx(1.0, abs=0.02)
    assert ratios[len(ratios) // 20] > 0.9
    assert ratios[-len(ratios) // 20] < 1.1


@pytest.mark.parametrize("rate", [0.3, 3.0, 6.0])
def test_first_tokens_come_when_predicted_on_the_average(rate: float) -> None:
    step = profile("h100/llama-70b-tp4").step
    jobs = poisson_jobs(random.Random(4), 200, rate, (200, 3000), (50, 400))
    config = EngineConfig(step, num_blocks=40_000, max_batched_tokens=2048)
    said, came = [], []
    for one in serve(config, jobs, overhead_ms=20.0):
        load = Load(
            one.load.sequences, one.load.context_tokens, one.load.waiting_prefill_tokens, one.load.waiting, 2048
        )
        said.append(ttft_ms(step, load, one.job.prompt_tokens, overhead_ms=20.0))
        came.append(one.ttft_ms)
    assert sum(said) / sum(came) == pytest.approx(1.0, abs=0.08)
    # Nobody knows where in a step a request falls.
    assert sum(abs(a / b - 1) for a, b in zip(said, came, strict=True)) / len(came) < 0.25


def test_a_driven_engine_is_seen_as_it_is() -> None:
    step = profile("h100/llama-70b-tp4").step
    (one,) = serve(EngineConfig(step, num_blocks=1000), [Job(5.0, 1000, 33)], overhead_ms=10.0)
    assert one.first_ms == pytest.approx(5 + 10 + step.step_ms(0, 0, 1000))
    assert one.tpot_ms == pytest.approx(step.step_ms(1, 1017, 0), rel=0.001)
    assert one.span is not None
    assert one.span.steps == 32
    slow = serve(EngineConfig(step, num_blocks=1000), [Job(5.0, 1000, 33)], slow=2.0)
    assert slow[0].tpot_ms == pytest.approx(2 * one.tpot_ms)


def test_the_page_says_whether_the_bar_is_met() -> None:
    results = {
        "after": (0, 50),
        "cases": [
            {
                "case": "vLLM on X, recorded",
                "factor": 3.0,
                "tpot": {"0": 200.0, "50": 9.0},
                "ahead": {"50": 12.0},
                "ttft": {},
            },
            {"case": "e, 1/s, log", "factor": 1 / 3, "tpot": {"0": 66.0, "50": 1.0}, "ahead": {}, "ttft": {"50": 17.0}},
        ],
    }
    text = online_model.markdown(results)
    assert "| vLLM on X, recorded | × 3 | 200.0 | 9.0 | 12.0 | – |" in text
    assert "| e, 1/s, log | × 1/3 | 66.0 | 1.0 | – | 17.0 |" in text
    assert "recorded 9.0 %, simulated 1.0 %; bar 8 %: MISSED" in text
