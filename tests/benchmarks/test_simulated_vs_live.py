"""The benchmark of the simulator against the live path: its traces, bodies, figures and verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simulated_vs_live
from harness.sim_fleet import Answered, _body, late, profile_file
from pointsman.edge.traces.profile_file import load_profile
from simulated_vs_live import PROFILE, SIZE, WORKERS, Options, made_trace, markdown, met, setup, summary

OPTIONS = Options(seconds=10.0)


def row(live: float, simulated: float) -> dict:
    def figures(value: float) -> dict[str, float]:
        names = ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "e2e_p50_ms")
        return {**dict.fromkeys(names, value), "hit": 0.5}

    return {"requests": 60, "late": 0, "behind_ms": 0.0, "live": figures(live), "simulated": figures(simulated)}


def results(*pairs: tuple[float, float]) -> dict:
    return {"rows": {"kv": [row(*pair) for pair in pairs]}, "foreign_cores": 0.0}


def test_prompts_with_the_same_blocks_begin_with_the_same_tokens() -> None:
    trace = made_trace(OPTIONS, 1)
    prompts = [json.loads(_body(trace, request))["prompt"] for request in trace.requests]
    shared = 0
    for one, other in zip(range(len(trace)), range(1, len(trace)), strict=False):
        ids, others = trace.requests[one].block_ids, trace.requests[other].block_ids
        common = next((i for i, pair in enumerate(zip(ids, others, strict=False)) if pair[0] != pair[1]), 0)
        tokens = common * trace.block_tokens
        assert prompts[one][:tokens] == prompts[other][:tokens]
        assert prompts[one][tokens] != prompts[other][tokens]
        shared += common > 0
    assert shared
    assert [len(prompt) for prompt in prompts] == [request.prompt_tokens for request in trace.requests]


def test_the_fleet_holds_all_beginnings_and_one_engine_does_not() -> None:
    trace = made_trace(Options(seconds=200.0), 0)
    beginnings = {block for request in trace.requests for block in request.block_ids if block < 10**6}
    assert SIZE.num_blocks < len(beginnings) < WORKERS * SIZE.num_blocks


def test_engines_are_as_the_simulator_is_told(tmp_path: Path) -> None:
    loaded = load_profile(str(profile_file(PROFILE, tmp_path)))
    assert (loaded.step, loaded.kv_tokens) == (PROFILE.step, PROFILE.kv_tokens)
    assert setup().groups[0].profile.num_blocks(SIZE.block_tokens) == SIZE.num_blocks


def test_the_median_of_the_runs_is_judged() -> None:
    good = results((500, 520), (510, 505), (500, 900))
    assert summary(good)["kv"]["off"]["ttft_p99_ms"] == pytest.approx(0.04)
    assert met(good)
    assert "within 10%: met" in markdown(good)
    assert not met(results((500, 560), (500, 560), (500, 500)))


def test_simulated_figures_are_medians_over_seeds() -> None:
    trace = made_trace(OPTIONS, 1)
    found = [simulated_vs_live._simulated(trace, "round_robin", seeds) for seeds in (1, 3)]
    assert found[0] == found[1]
    assert 200 < found[0]["ttft_p50_ms"] < found[0]["ttft_p99_ms"]


def test_requests_that_were_sent_late_are_counted() -> None:
    assert late([Answered(1, 2, 0, 5.0), Answered(1, 2, 0, 150.0)]) == 1
