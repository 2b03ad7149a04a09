"""The benchmark of prefill and decode apart: its rules, its runs, its tables."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

import disaggregation
from harness.apart_runs import LOADS, MIXED, RULES, THRESHOLDS, WORKLOADS, ApartRun, carry_out_apart
from peers_policies.mooncake import GlobalCacheAware
from peers_policies.thresholds import IslBounding, UncachedTokens
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.plan import Aggregate, Disaggregate, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.contract import decided
from pointsman.core.policies.policy import NO_TIMING, Policy
from pointsman.core.timing.step import StepCoefficients

STEP = StepCoefficients(60.0, 0.05, 0.06, 0.24, 2e-6)


def request(tokens: int) -> Request:
    return Request("r", "m", 0.0, tokens, BlockKeys((), 16, BlockUnit.TOKENS, tokens))


def view(cached: list[int]) -> FleetView:
    """Two workers that can pass KV on to each other."""
    columns = {"kv_capacity_tokens": [100_000] * 2, "kv_group": [1] * 2, "kv_sides": [7] * 2, "node": [0, 1]}
    return FleetView.of(["a/0", "b/0"], cached_tokens=cached, exact=[1, 1], running=[0, 9], **columns)


def plan(policy: Policy, tokens: int, cached: list[int]) -> Any:
    return decided(policy, request(tokens), view(cached), NO_TIMING, 0.0, random.Random(1)).plan


def test_thresholds_count_what_is_not_cached_where_it_would_be_answered() -> None:
    assert isinstance(plan(UncachedTokens(256), 300, [0, 0]), Disaggregate)
    assert isinstance(plan(UncachedTokens(256), 255, [0, 0]), Aggregate)
    assert isinstance(plan(UncachedTokens(256), 300, [288, 288]), Aggregate)


@pytest.mark.parametrize(
    ("tokens", "cached", "apart"),
    [(3_000, 0, True), (3_000, 1_600, False), (3_000, 800, True), (1_000, 0, True), (1_000, 512, False)],
)
def test_dynamo_stays_local_below_both_bounds_only(tokens: int, cached: int, apart: bool) -> None:
    assert isinstance(plan(IslBounding(), tokens, [cached, cached]), Disaggregate) == apart


def test_blocks_are_fetched_from_the_best_match_where_a_node_holds_less_than_half() -> None:
    policy = GlobalCacheAware(STEP, 327_680, 1e8)
    assert plan(policy, 8_000, [0, 7_680]) == Aggregate("b/0")
    # The one with the blocks is busy with the first one now.
    assert plan(policy, 8_000, [0, 7_680]) == Aggregate("a/0", Pull("b/0", 7_680))
    assert plan(GlobalCacheAware(STEP, 327_680, 1e3), 8_000, [0, 7_680]) == Aggregate("b/0")


def test_rules_differ_in_when_prompts_are_computed_elsewhere() -> None:
    shares = {
        rule: carry_out_apart(ApartRun(workload="chat", load="medium", rule=rule, fleet="2:2", requests=40))["apart"]
        for rule in ("never", "always", "256 uncached")
    }
    assert shares["never"] == 0 < shares["256 uncached"] < shares["always"] == 1


def test_each_seed_has_traffic_of_its_own_and_each_rule_the_same() -> None:
    def chats(seed: int, rule: str) -> float:
        return carry_out_apart(ApartRun(workload="chat", load="light", rule=rule, seed=seed, requests=20))[
            "e2e_mean_ms"
        ]

    assert chats(0, "never") == chats(0, "never") != chats(1, "never")


def test_all_that_the_tables_show_is_simulated() -> None:
    runs = disaggregation.runs_of(disaggregation.Options(seeds=1))
    assert len(set(runs)) == len(runs)
    assert {run.rule for run in runs} == RULES.keys()
    assert {run.fleet for run in runs} >= MIXED.keys()
    results = {"runs": [made(run, 100.0) for run in runs]}
    text = disaggregation.markdown(results)
    assert "–" not in text
    for name in (*WORKLOADS, *LOADS, *THRESHOLDS):
        assert name in text


def made(run: ApartRun, ttft_ms: float) -> dict[str, Any]:
    numbers = dict.fromkeys(("ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "apart", "pulled"), 1.0)
    return {"ttft_mean_ms": ttft_ms, **numbers, "run": msgspec.to_builtins(run)}


def test_the_worst_case_is_judged_against_the_better_of_always_and_never() -> None:
    of: dict[str, Any] = {"workload": "chat", "load": "light"}
    runs = [
        made(ApartRun(rule="never", **of), 50.0),
        made(ApartRun(rule="always", link="NDR", **of), 40.0),
        made(ApartRun(rule="auto", link="NDR", **of), 44.0),
        made(ApartRun(rule="always", link="1 GbE", **of), 900.0),
        made(ApartRun(rule="auto", link="1 GbE", **of), 50.0),
    ]
    worst = disaggregation.summary({"runs": runs})["worst_to_best_of_always_and_never"]
    assert worst["4 for both"] == pytest.approx(1.1)
    text = disaggregation.markdown({"runs": runs})
    assert "| 50 | 40 | 44 | **1.10** |" in text
    assert "| 900 | 50 | 1.00 |" in text
