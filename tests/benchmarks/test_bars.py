from __future__ import annotations

from typing import Any

from harness import bars
from harness.subjects import EXACT_SUBJECT

RESULTS: dict[str, dict[str, Any]] = {
    "decision": {"summary": {"cost/8/6400": {"total_p50_us": 80.0, "peer_p50_us": 100.0, "total_p99_us": 1.0}}},
    "relay": {
        "summary": {
            EXACT_SUBJECT: {"cpu_us": 600.0, "requests_per_s": 1_200.0, "idle_rss_mb": 94.0},
            "dynamo kv": {"cpu_us": 1_000.0, "requests_per_s": 1_000.0},
        }
    },
    "simulator": {"summary": {"kv/512": {"cpu_s": 9.0}, "kv/16": {"cpu_s": 99.0}, "prefix/512": {"cpu_s": 8.0}}},
    "llmd_capacity": {
        "summary": {
            "deviations": {"random": -0.16, "load": 0.1},
            "in_order": True,
            "same_knees": False,
        }
    },
    "mooncake_fast25": {
        "summary": {
            "ttft_mean_s": {
                "random": 20.0,
                "load balance": 5.0,
                "local cache-aware": 3.7,
                "global cache-aware": 3.6,
            },
            "local_to_load_balance": 0.74,
            "global_to_local": 0.97,
        }
    },
    "simulated_vs_live": {
        "summary": {
            "round_robin": {"off": {"ttft_p50_ms": -0.01, "ttft_p99_ms": 0.0, "hit": 0.5}},
            "kv": {"off": {"ttft_p50_ms": 0.02, "ttft_p99_ms": -0.11}},
        }
    },
    "disaggregation": {"summary": {"worst_to_best_of_always_and_never": {"4 for both": 1.01, "2:2": 1.06}}},
    "cost_quality": {"summary": {"default_to_best": {"uniform": 1.0, "zipf": 0.98}}},
    "placement_scale": {"summary": {"512×8, 0% use": {"worst_s": {"512": 0.02, "5000": 5.5}}}},
    "placement_cluster": {"summary": {"cycle_s": 7.0}},
    "placement_oracle": {"counts": {"placed, same cost": 5, "missed": 1}},
    "index": {"filled": {"1": {"bytes_per_pair": 159.0}}},
}


def _lines(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {bar.what: bar.verdict for bar in bars.bars(results)}


def test_each_bar_is_judged_by_its_own_direction() -> None:
    lines = _lines(RESULTS)
    assert (
        lines["decision of cost from token ids, 8 workers, 400 blocks: p50 ÷ Dynamo's SelectionService"]
        == "**not reached**"
    )
    assert lines["CPU of a streamed request, exact cost ÷ Dynamo kv"] == "reached"
    assert lines["requests/s on one core, 64 clients, exact cost ÷ Dynamo kv"] == "**not reached**"
    assert lines["memory of an idle front end with a tokenizer"] == "reached"
    assert lines["index: memory of a (block, worker) pair, 1 worker a block"] == "reached"
    assert lines["one default policy ÷ the best, tok/s, shared prompts with uniform popularity"] == "reached"
    assert lines["the same with Zipf popularity"] == "**not reached**"


def test_the_simulator_is_held_to_what_was_published() -> None:
    lines = _lines(RESULTS)
    live = "simulator against the live path, real time: largest difference of TTFT P50 and P99, round_robin and kv"
    assert f"| {live} | ≤ 0.1 | 0.11 | **not reached** |" in bars.markdown(RESULTS)
    assert lines["simulated llm-d capacity table, 4 policies: largest deviation of tok/s"] == "**not reached**"
    order = "the same: policies that are 5 % apart or more in the published order, knees at the same stages (1 = yes)"
    assert lines[order] == "**not reached**"
    assert lines["the same: policies in the paper's order (1 = yes)"] == "reached"
    moving = "the same: global cache-aware, which moves blocks, ÷ local, away from the paper's .86"
    assert lines[moving] == "**not reached**"
    apart = "prefill and decode apart by request ÷ the better one of always and never: mean TTFT, worst of all cases"
    assert lines[apart] == "**not reached**"
    figure = "simulated Mooncake figure: local cache-aware ÷ load balance, away from the paper's .68"
    assert lines[figure] == "reached"
    speed = "simulator, Mooncake conversation trace, 16 workers, 512-token blocks: CPU s of the slowest policy"
    assert f"| {speed} | ≤ 10 s | 9.00 s | reached |" in bars.markdown(RESULTS)
    order = {"random": 20.0, "load balance": 3.0, "local cache-aware": 3.7, "global cache-aware": 2.9}
    wrong = {"mooncake_fast25": {"summary": {"ttft_mean_s": order, "local_to_load_balance": 3.7 / 3.0}}}
    assert _lines(wrong)["the same: policies in the paper's order (1 = yes)"] == "**not reached**"
    assert _lines(wrong)[figure] == "**not reached**"


def test_gangs_are_judged_on_empty_clusters_and_on_used_ones() -> None:
    lines = _lines(RESULTS)
    assert lines["512-pod × 8-GPU gang on 512 nodes with topology: plan, worst"] == "reached"
    assert lines["the same on 5,000 nodes"] == "**not reached**"
    assert lines["1,000 waiting gangs on 512 and 5,000 nodes: the longest cycle"] == "reached"
    missed = "placements that an exact solver finds on small clusters and ours misses"
    assert lines[missed] == "**not reached**"
    used = {"512×8, 0% use": {"worst_s": {"512": 0.1}}, "512×8, 50% use": {"worst_s": {"512": 1.5}}}
    worst = _lines({"placement_scale": {"summary": used}})
    assert worst["512-pod × 8-GPU gang on 512 nodes with topology: plan, worst"] == "**not reached**"


def test_what_is_missing_is_said_to_be_not_measured() -> None:
    lines = _lines(RESULTS)
    assert lines["the same, p99 ÷ p99"] == "not measured"
    assert set(_lines({}).values()) == {"not measured"}
    assert len(_lines({})) >= 16


def test_a_line_has_the_bar_and_what_was_measured() -> None:
    table = bars.markdown(RESULTS)
    assert "| CPU of a streamed request, exact cost ÷ Dynamo kv | ≤ 0.65 × | 0.60 × | reached |" in table
    assert "| memory of an idle front end with a tokenizer | ≤ 100 MB | 94.00 MB | reached |" in table
