from __future__ import annotations

from typing import Any

import msgspec
import pytest

import llmd_capacity
import mooncake_fast25
import random_or_best
import simulator
from harness import capacity_runs, report
from harness.capacity_runs import POLICIES, Run, carry_out_run
from harness.data import data_file
from harness.pool import in_parallel
from harness.processes import BenchmarkError

SHORT = ((15.0, 4.0), (10.0, 3.0), (40.0, 2.0))


@pytest.fixture(scope="module")
def short_runs() -> dict[str, dict[str, Any]]:
    return {policy: carry_out_run(Run(policy=policy, stages=SHORT, output_tokens=20)) for policy in POLICIES}


def test_every_policy_runs_through_the_fleet(short_runs: dict[str, dict[str, Any]]) -> None:
    for policy, found in short_runs.items():
        assert [stage["rate"] for stage in found["stages"]] == [10.0, 40.0], policy
        assert 0 < found["ttft_mean_s"] < 5
        # No stage is faster than its load.
        assert all(0 < stage["tok_s"] <= 1.3 * stage["rate"] * 20 for stage in found["stages"])
        assert 0 <= found["hit"] < 1
    # The only warm prompts are those of groups that came before; who looks for them finds more of them.
    assert short_runs["llm-d precise 3/2/2"]["hit"] > 2 * short_runs["random"]["hit"]
    assert short_runs["pointsman kv"]["hit"] > 2 * short_runs["random"]["hit"]


def test_same_seed_same_result(short_runs: dict[str, dict[str, Any]]) -> None:
    again = carry_out_run(Run(policy="pointsman kv", stages=SHORT, output_tokens=20))
    assert {**again, "cpu_s": 0} == {**short_runs["pointsman kv"], "cpu_s": 0}
    other = carry_out_run(Run(policy="pointsman kv", stages=SHORT, output_tokens=20, seed=1))
    assert other["stages"] != again["stages"]


def test_shuffling_what_is_simultaneous_changes_next_to_nothing(short_runs: dict[str, dict[str, Any]]) -> None:
    shuffled = carry_out_run(Run(policy="pointsman kv", stages=SHORT, output_tokens=20, shuffle_ties=True))
    assert shuffled["tok_s"] == pytest.approx(short_runs["pointsman kv"]["tok_s"], rel=0.01)


def test_blind_policies_decide_the_same_without_kv_events(
    short_runs: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = sorted(capacity_runs.BLIND)
    assert set(blind) < set(POLICIES)
    monkeypatch.setattr(capacity_runs, "BLIND", frozenset())
    for policy in blind:
        seeing = carry_out_run(Run(policy=policy, stages=SHORT, output_tokens=20))
        assert {**seeing, "cpu_s": 0} == {**short_runs[policy], "cpu_s": 0}, policy


def test_a_stage_must_have_ended_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.shared_prompts.DRAIN_MS", 1.0)
    with pytest.raises(BenchmarkError, match="stage 1 ends after the next one began"):
        carry_out_run(Run(policy="random", stages=SHORT, output_tokens=20))


def _capacity_results(short_runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    runs = []
    for number, (policy, found) in enumerate(short_runs.items()):
        for popularity in llmd_capacity.POPULARITIES:
            plain = msgspec.to_builtins(Run(policy=policy, popularity=popularity))
            speed = {"tok_s": 1_000.0 + number, "tok_s_of_all": 2_000.0 - number}
            runs.append({**found, **speed, "run": plain, "knee": None if number % 2 else 20.0})
    other = msgspec.to_builtins(Run(policy="random", output_tokens=250))
    runs.append({**short_runs["random"], "tok_s": 777.0, "run": other})
    stage = {"rate": 20.0, "tok_s": 1_100.0, "ttft_p90_s": 60.0, "ttft_mean_s": 9.0}
    published = {policy: [{**stage, "rate": 3.0, "ttft_mean_s": 1.0}, stage] for policy in llmd_capacity.PUBLISHED}
    return {"published": published, "runs": runs}


def test_the_capacity_tables_compare_each_run_with_its_own_kind(short_runs: dict[str, dict[str, Any]]) -> None:
    results = _capacity_results(short_runs)
    text = llmd_capacity.markdown(results)
    assert "| llm-d precise 3/2/2 | 1,100 | 1,004 | -8.7% | 1,100 |" in text
    assert "| 20/s | none |" in text  # a published knee, and a simulated run without one
    assert "| pointsman cost | 2,000 (1) | 1.000 |" in text
    assert "| 250 output tokens | – | – | 777 | – |" in text
    assert "Largest deviation of tok/s: -8.7%. Policies whose" in text
    assert "in the published order; knees are **not all the same**." in text
    found = llmd_capacity.summary(results)
    assert found["default_to_best"] == {"uniform": 1.0, "zipf": 1.0}
    assert found["in_order"]  # all published values are equal, so any order is theirs
    assert not found["same_knees"]
    assert found["deviations"]["llm-d precise 3/2/2"] == pytest.approx(1_004 / 1_100 - 1)


def test_order_and_knees_are_compared_with_the_published_ones(short_runs: dict[str, dict[str, Any]]) -> None:
    results = _capacity_results(short_runs)
    precise, estimated = results["published"]["llm-d precise 3/2/2"], results["published"]["llm-d estimated 1/1/1"]
    results["published"] = {"llm-d precise 3/2/2": precise, "llm-d estimated 1/1/1": estimated}
    assert llmd_capacity.in_order(results)
    # Here the later policy of the list has more tok/s: not what was published with 10 % more for the first one.
    results["published"]["llm-d precise 3/2/2"] = [{**stage, "tok_s": 1.1 * stage["tok_s"]} for stage in precise]
    assert not llmd_capacity.in_order(results)
    for one in results["runs"]:
        one["knee"] = 20.0
    assert llmd_capacity.same_knees(results)


def test_mooncakes_table_has_ratios_to_load_balance() -> None:
    speeds = {"random": 20.0, "load balance": 5.0, "local cache-aware": 3.5, "global cache-aware": 2.8}
    runs = [
        {"policy": policy, "ttft_mean_s": speeds.get(policy, 4.0) + spread, "ttft_p90_s": 9.0, "hit": 0.3, "moved": 0.2}
        for policy in mooncake_fast25.POLICIES
        for spread in (-0.5, 0.5)
    ]
    text = mooncake_fast25.markdown({"runs": runs})
    assert "| random | 19.65 | 20.00 | 3.73 | 4.00 | 9.00 | 0.300 | – |" in text
    assert "| global cache-aware | 3.07 | 2.80 | 0.58 | 0.56 | 9.00 | 0.300 | 0.200 |" in text
    assert mooncake_fast25.summary({"runs": runs})["local_to_load_balance"] == pytest.approx(0.7)
    assert mooncake_fast25.summary({"runs": runs})["global_to_local"] == pytest.approx(0.8)


def test_the_speed_table_says_whether_chance_plays_a_part() -> None:
    row = {"wall_s": 9.0, "cpu_s": 8.0, "simulated_s": 4_000.0, "rss_mb": 300.0, "ttft_mean_s": 2.0, "hit": 0.3}
    row = {**row, "tok_s": 1_000.0, "load_s": 1.0, "trace_mb": 100.0, "done": 9}
    rounds = [{**row, "digest": "a"}, {**row, "digest": "a", "cpu_s": 12.0}]
    shuffled = {"kv": {**row, "tok_s": 1_005.0, "ttft_mean_s": 1.9}}
    results = {"rows": {"kv/512": rounds}, "shuffled": shuffled, "foreign_cores": 0.0}
    text = simulator.markdown(results)
    assert "| kv | 512 | 10.0 | 9.0 | 400 | 300 | 2.00 | 0.300 |" in text
    assert "Rounds with the same seed: 2, the same bytes." in text
    assert "kv +0.50% tok/s, -5.0% mean TTFT" in text
    rounds[1]["digest"] = "b"
    assert "**not the same numbers**" in simulator.markdown(results)


def test_a_reduction_has_an_interval_over_paired_seeds() -> None:
    runs = [
        {
            **{"popularity": popularity, "rate": 8.0, "policy": policy, "seed": seed},
            **{"ttft_p50_s": 1.0, "tok_s": 1.0, "hit": 0.5},
            "ttft_p99_s": (1.0 + seed) * factor,
        }
        for popularity in random_or_best.POPULARITIES
        for policy, factor in zip((random_or_best.BASE, *random_or_best.OTHERS), (1.0, 1.0, 0.5, 0.35), strict=True)
        for seed in range(4)
    ]
    results = {"runs": runs, "rates": (8.0,)}
    changes = random_or_best.summary(results)["uniform"]["8"]
    assert changes["pointsman kv"] == pytest.approx((-0.65, -0.65, -0.65))
    assert "-65.0% (-65.0% … -65.0%)" in random_or_best.markdown(results)
    assert "+0.0% (+0.0% … +0.0%)" in random_or_best.markdown(results)


def test_missing_data_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POINTSMAN_DATA", raising=False)
    with pytest.raises(BenchmarkError, match="POINTSMAN_DATA"):
        data_file("mooncake/conversation_trace.jsonl")
    monkeypatch.setenv("POINTSMAN_DATA", "/nowhere")
    with pytest.raises(BenchmarkError, match=r"there is no mooncake/conversation_trace\.jsonl"):
        data_file("mooncake/conversation_trace.jsonl")


def test_results_keep_the_order_of_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_parallel(abs, [-3, 2, -1], 1, str) == [3, 2, 1]
    assert capsys.readouterr().err == "  1/3 -3\n  2/3 2\n  3/3 -1\n"


def test_the_proofs_page_has_the_markers_of_every_benchmark() -> None:
    for name in ("llmd_capacity", "mooncake_fast25", "simulator", "random_or_best"):
        assert report.replace_section(report.PROOFS_PAGE.read_text(), name, "x")
