"""The bars of the design, judged by the results there are: one line each, with the numbers of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from harness import report
from harness.histogram import ratio
from harness.subjects import EXACT_SUBJECT

Results = Mapping[str, Mapping[str, Any]]
"""Benchmark → its results file."""
_NAMES = (
    "decision", "relay", "streams", "index", "simulator", "llmd_capacity", "mooncake_fast25", "simulated_vs_live",
    "cost_quality", "disaggregation", "placement_oracle", "placement_scale", "placement_cluster",
)  # fmt: skip
_AT_8, _AT_256 = "cost/8/6400", "cost/256/6400"
_DYNAMO = "dynamo kv"
SIMULATED_BLOCKS = "/512"
PAPER_ORDER = ("random", "load balance", "local cache-aware", "global cache-aware")
"""Slowest first."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `value` is compared with `limit`; None = not measured."""

    what: str
    value: float | None
    limit: float
    unit: str = "×"
    at_least: bool = False
    note: str = ""

    @property
    def verdict(self) -> str:
        """Reached, not reached, or not measured."""
        if self.value is None:
            return "not measured"
        reached = self.value >= self.limit if self.at_least else self.value <= self.limit
        return "reached" if reached else "**not reached**"

    def line(self) -> list[str]:
        """Cells of the table."""
        sign = "≥" if self.at_least else "≤"
        value = "–" if self.value is None else f"{report.number(self.value, 2)} {self.unit}"
        verdict = f"{self.verdict}; {self.note}" if self.note else self.verdict
        return [self.what, f"{sign} {self.limit:,g} {self.unit}".strip(), value.strip(), verdict]


def bars(results: Results) -> list[Bar]:
    """All of them, in the design's order."""
    return [
        *_decision(results),
        *_relay(results),
        *_streams(results),
        *_index(results),
        *_simulated(results),
        *_placement(results),
    ]


def _rows(results: Results, name: str) -> Mapping[str, Mapping[str, float | None]]:
    return results.get(name, {}).get("summary", {})


def _ratio(rows: Mapping[str, Mapping[str, float | None]], ours: str, theirs: str, key: str) -> float | None:
    return ratio(rows.get(ours, {}).get(key), rows.get(theirs, {}).get(key))


def _decision(results: Results) -> list[Bar]:
    rows = _rows(results, "decision")

    def against(case: str, percentile: str) -> float | None:
        row = rows.get(case, {})
        return ratio(row.get(f"total_{percentile}_us"), row.get(f"peer_{percentile}_us"))

    first = "decision of cost from token ids, 8 workers, 400 blocks: p50 ÷ Dynamo's SelectionService"
    return [
        Bar(first, against(_AT_8, "p50"), 0.75),
        Bar("the same, p99 ÷ p99", against(_AT_8, "p99"), 1.0),
        Bar("the same with 256 workers, p50 ÷ p50", against(_AT_256, "p50"), 1.0),
    ]


def _relay(results: Results) -> list[Bar]:
    rows = _rows(results, "relay")
    kv, prefix = rows.get(EXACT_SUBJECT, {}), rows.get("pointsman prefix", {})
    router = rows.get("vllm-router cache_aware", {})
    added = "added_ttft_p50_ms"
    memory = kv.get("idle_rss_mb")
    return [
        Bar("CPU of a streamed request, exact cost ÷ Dynamo kv", _ratio(rows, EXACT_SUBJECT, _DYNAMO, "cpu_us"), 0.65),
        Bar(
            "the same, prefix by text ÷ vllm-router cache_aware",
            _ratio(rows, "pointsman prefix", "vllm-router cache_aware", "cpu_us"),
            1.0,
        ),
        Bar(
            "requests/s on one core, 64 clients, exact cost ÷ Dynamo kv",
            _ratio(rows, EXACT_SUBJECT, _DYNAMO, "requests_per_s"),
            1.3,
            at_least=True,
        ),
        Bar(
            "CPU of 2,000-word prompts, 90 % seen before, exact cost ÷ Dynamo kv",
            _ratio(rows, EXACT_SUBJECT, _DYNAMO, "long_cpu_us"),
            0.5,
        ),
        Bar(
            "added TTFT p50 at 200/s, prefix ÷ vllm-router cache_aware",
            ratio(prefix.get(added), router.get(added)),
            1.0,
        ),
        Bar("added TTFT p50 at 200/s, exact cost", kv.get(added), 1.0, "ms"),
        Bar(
            "added TTFT p50 at one client, exact cost: no stall of Nagle's (40 ms)",
            kv.get("added_single_ttft_p50_ms"),
            5.0,
            "ms",
        ),
        Bar("memory of an idle front end with a tokenizer", memory, 100.0, "MB"),
    ]


def _streams(results: Results) -> list[Bar]:
    row = _rows(results, "streams").get("pointsman prefix", {})
    start, end = row.get("rss_start_mb"), row.get("rss_end_mb")
    return [
        Bar("2,000 open streams: errors", row.get("errors"), 0.0, ""),
        Bar("the same: added inter-token p99", row.get("added_itl_p99_ms"), 20.0, "ms"),
        Bar("the same: memory at the end ÷ at the start", ratio(end, start), 1.1),
    ]


def _index(results: Results) -> list[Bar]:
    filled = results.get("index", {}).get("filled", {})

    def size(workers: str) -> float | None:
        return filled.get(workers, {}).get("bytes_per_pair")

    return [
        Bar("index: memory of a (block, worker) pair, 1 worker a block", size("1"), 170.0, "B"),
        Bar("the same, 8 workers a block", size("8"), 60.0, "B"),
    ]


def _simulated(results: Results) -> list[Bar]:
    """What the simulator is held against; its tables are on a page of their own."""
    speed = _rows(results, "simulator")
    capacity = results.get("llmd_capacity", {}).get("summary", {})
    nodes = results.get("mooncake_fast25", {}).get("summary", {})
    live = results.get("simulated_vs_live", {}).get("summary", {})
    seconds = [row["cpu_s"] for case, row in speed.items() if case.endswith(SIMULATED_BLOCKS)]
    deviations = [abs(value) for value in capacity.get("deviations", {}).values()]
    ratios = results.get("cost_quality", {}).get("summary", {}).get("default_to_best", {})
    ordered = capacity.get("in_order")
    order = nodes.get("ttft_mean_s", {})
    local, moving = nodes.get("local_to_load_balance"), nodes.get("global_to_local")
    apart = results.get("disaggregation", {}).get("summary", {}).get("worst_to_best_of_always_and_never", {})
    return [
        Bar(
            "simulator, Mooncake conversation trace, 16 workers, 512-token blocks: CPU s of the slowest policy",
            _largest(seconds),
            10.0,
            "s",
        ),
        Bar("simulated llm-d capacity table, 4 policies: largest deviation of tok/s", _largest(deviations), 0.15, ""),
        Bar(
            "the same: policies that are 5 % apart or more in the published order, knees at the same stages (1 = yes)",
            None if ordered is None else float(ordered and capacity["same_knees"]),
            1.0,
            "",
            at_least=True,
        ),
        Bar(
            "simulated Mooncake figure: local cache-aware ÷ load balance, away from the paper's .68",
            None if local is None else abs(local - 0.68),
            0.1,
            "",
        ),
        Bar(
            "the same: global cache-aware, which moves blocks, ÷ local, away from the paper's .86",
            None if moving is None else abs(moving - 0.86),
            0.1,
            "",
        ),
        Bar(
            "the same: policies in the paper's order (1 = yes)",
            float(sorted(PAPER_ORDER, key=lambda name: -order[name]) == list(PAPER_ORDER))
            if order.keys() >= set(PAPER_ORDER)
            else None,
            1.0,
            "",
            at_least=True,
        ),
        Bar(
            "one default policy ÷ the best, tok/s, shared prompts with uniform popularity",
            ratios.get("uniform"),
            0.99,
            at_least=True,
        ),
        Bar("the same with Zipf popularity", ratios.get("zipf"), 0.99, at_least=True),
        Bar(
            "prefill and decode apart by request ÷ the better one of always and never: mean TTFT, worst of all cases",
            _largest(list(apart.values())),
            1.05,
        ),
        Bar(
            "simulator against the live path, real time: largest difference of TTFT P50 and P99, round_robin and kv",
            _largest([abs(row["off"][name]) for row in live.values() for name in ("ttft_p50_ms", "ttft_p99_ms")]),
            0.1,
            "",
        ),
    ]


def _largest(values: list[float]) -> float | None:
    return max(values, default=None)


def _placement(results: Results) -> list[Bar]:
    """Gangs; their tables are on a page of their own."""
    counts = results.get("placement_oracle", {}).get("counts")
    scale = _rows(results, "placement_scale")
    worst = [scale.get(f"512×8, {use}% use", {}).get("worst_s", {}) for use in (0, 50)]
    cluster = results.get("placement_cluster", {}).get("summary", {})
    missed = None if counts is None else float(sum(n for what, n in counts.items() if what.startswith("missed")))
    return [
        Bar("512-pod × 8-GPU gang on 512 nodes with topology: plan, worst", _worst(worst, "512"), 1.0, "s"),
        Bar("the same on 5,000 nodes", _worst(worst, "5000"), 5.0, "s"),
        Bar("1,000 waiting gangs on 512 and 5,000 nodes: the longest cycle", cluster.get("cycle_s"), 10.0, "s"),
        Bar("placements that an exact solver finds on small clusters and ours misses", missed, 0.0, ""),
    ]


def _worst(rows: list[Mapping[str, float]], nodes: str) -> float | None:
    return _largest([row[nodes] for row in rows if nodes in row])


def markdown(results: Results) -> str:
    """The table of the page."""
    return report.table(["bar", "to hold", "measured", "verdict"], [bar.line() for bar in bars(results)])


def read_results() -> Results:
    """The results files that there are."""
    files = {name: report.RESULTS / f"{name}.json" for name in _NAMES}
    return {name: msgspec.json.decode(file.read_bytes()) for name, file in files.items() if file.exists()}
