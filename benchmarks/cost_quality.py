"""The cost policy held against all others: shared prompts of equal and of unequal popularity, and recorded traffic.

usage: scripts/bench cost_quality [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from scipy import stats

from harness import calibration_plot, report
from harness.command import carry_out
from harness.pool import in_parallel
from harness.quality_runs import ABLATED, POPULARITIES, TERMS, TRAFFIC, WISHES, QualityRun, carry_out_quality

COST = "pointsman cost"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "cost-policy.md"
CAPACITY_POLICIES = (
    COST,
    "pointsman kv",
    "pointsman prefix",
    "hash of the group (oracle key)",
    "llm-d precise 3/2/2",
    "SMG cache_aware (64, 1.5, .3)",
    "AIBrix prefix (16, 2σ)",
    "guard (1.1, 4)",
    "priced, λ = 100",
)
"""Those that are within a tenth of the best one on either popularity (docs/simulator-proofs.md has all)."""
TRAFFIC_POLICIES = (COST, "pointsman kv", "pointsman prefix", "least requests", "round robin")
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    seeds: int = 4
    traffic_seeds: int = 4
    ablation_seeds: int = 2
    jobs: int | None = None


def runs_of(options: Options) -> list[QualityRun]:
    """Everything that is simulated."""
    capacity = [
        QualityRun(traffic=traffic, policy=policy, seed=seed, compared=policy == COST)
        for seed in range(options.seeds)
        for traffic in POPULARITIES
        for policy in CAPACITY_POLICIES
    ]
    recorded = [
        QualityRun(traffic=traffic, policy=policy, seed=seed, compared=policy == COST)
        for seed in range(options.traffic_seeds)
        for traffic in TRAFFIC
        for policy in TRAFFIC_POLICIES
    ]
    learned = [
        QualityRun(traffic=traffic, policy=COST, seed=seed, learn_times=True)
        for seed in range(options.traffic_seeds)
        for traffic in TRAFFIC
    ]
    ablated = [
        QualityRun(traffic=traffic, policy=ABLATED + term, seed=seed)
        for seed in range(options.ablation_seeds)
        for traffic in (*POPULARITIES, *TRAFFIC)
        for term in TERMS
    ]
    wished = [
        QualityRun(traffic=traffic, policy=policy, seed=seed)
        for seed in range(options.ablation_seeds)
        for traffic, (_, term) in WISHES.items()
        for policy in (COST, ABLATED + term)
    ]
    return capacity + recorded + learned + ablated + wished


def run(options: Options) -> Results:
    """All runs, several side by side."""
    runs = runs_of(options)
    return {
        "runs": in_parallel(
            carry_out_quality, runs, options.jobs, lambda one: f"{one.traffic}: {one.policy} {one.seed}"
        )
    }


def _of(results: Results, traffic: str, policy: str, *, learn_times: bool = False) -> list[Mapping[str, Any]]:
    wanted = (traffic, policy, learn_times)
    found = [
        one
        for one in results["runs"]
        if (one["run"]["traffic"], one["run"]["policy"], one["run"]["learn_times"]) == wanted
    ]
    return sorted(found, key=lambda one: one["run"]["seed"])


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(one[key] for one in runs)


def ratio_bound(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Mean of ours ÷ theirs over paired seeds, and its 95 % limits (Student's t); both equal to it for one seed."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(ratios)
    if len(ratios) < 2:
        return mean, mean, mean
    half = float(stats.t.ppf(0.975, len(ratios) - 1)) * statistics.stdev(ratios) / len(ratios) ** 0.5
    return mean, mean - half, mean + half


def summary(results: Results) -> dict[str, Any]:
    """What the bars are judged by."""
    found: dict[str, Any] = {"default_to_best": {}, "recorded": {}}
    for traffic in POPULARITIES:
        tok_s = {policy: _of(results, traffic, policy) for policy in CAPACITY_POLICIES}
        means = {policy: _mean(runs, "tok_s") for policy, runs in tok_s.items() if runs}
        if COST in means:
            found["default_to_best"][traffic] = means[COST] / max(means.values())
    for traffic in TRAFFIC:
        found["recorded"][traffic] = _against_best(results, traffic)
    return found


def _against_best(results: Results, traffic: str) -> dict[str, list[float]]:
    """tok/s and P99 TTFT ÷ those of the best other policy, with their limits."""
    ours = _of(results, traffic, COST)
    others = [runs for policy in TRAFFIC_POLICIES[1:] if (runs := _of(results, traffic, policy))]
    if not ours or not others:
        return {}
    fastest = max(others, key=lambda runs: _mean(runs, "tok_s"))
    soonest = min(others, key=lambda runs: _mean(runs, "ttft_p99_ms"))
    return {
        "tok_s": list(ratio_bound([one["tok_s"] for one in ours], [one["tok_s"] for one in fastest])),
        "ttft_p99": list(ratio_bound([one["ttft_p99_ms"] for one in ours], [one["ttft_p99_ms"] for one in soonest])),
    }


def markdown(results: Results) -> str:
    """The tables of the page."""
    parts = [_capacity_table(results), _traffic_table(results), _verdicts(results)]
    parts += [_ablation_table(results), _wishes_table(results), _positive_table(results), _calibration_table(results)]
    return "\n\n".join(part for part in parts if part)


def _capacity_table(results: Results) -> str:
    header = ["policy"]
    for traffic in POPULARITIES:
        header += [f"{traffic} tok/s (seeds)", "mean", "÷ best", "TTFT P99 s", "TPOT ms", "hit"]
    best = {
        traffic: max((_mean(r, "tok_s") for p in CAPACITY_POLICIES if (r := _of(results, traffic, p))), default=1.0)
        for traffic in POPULARITIES
    }
    lines = []
    for policy in CAPACITY_POLICIES:
        line = [policy]
        for traffic in POPULARITIES:
            runs = _of(results, traffic, policy)
            if not runs:
                return ""
            tok_s = [one["tok_s"] for one in runs]
            line += [
                f"{report.number(min(tok_s))} – {report.number(max(tok_s))} ({len(runs)})",
                report.number(statistics.fmean(tok_s)),
                report.number(statistics.fmean(tok_s) / best[traffic], 3),
                report.number(_mean(runs, "ttft_p99_ms") / 1000, 2),
                report.number(_mean(runs, "tpot_mean_ms"), 1),
                report.number(_mean(runs, "hit"), 3),
            ]
        lines.append(line)
    return report.table(header, lines)


def _traffic_table(results: Results) -> str:
    header = ["traffic", "policy", "tok/s", "TTFT mean ms", "TTFT P99 ms", "TPOT ms", "E2E mean ms", "hit", "failed"]
    lines = []
    for traffic in TRAFFIC:
        rows = [(policy, _of(results, traffic, policy)) for policy in TRAFFIC_POLICIES]
        rows.append(("pointsman cost, times learned", _of(results, traffic, COST, learn_times=True)))
        for policy, runs in rows:
            if runs:
                values = ("tok_s", "ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms")
                numbers = [report.number(_mean(runs, key), 1 if key == "tpot_mean_ms" else 0) for key in values]
                failed = str(sum(one["failed"] for one in runs))
                lines.append([traffic, policy, *numbers, report.number(_mean(runs, "hit"), 3), failed])
    return report.table(header, lines) if lines else ""


def _verdicts(results: Results) -> str:
    lines = []
    for traffic in TRAFFIC:
        found = _against_best(results, traffic)
        if found:
            cells = [f"{mean:.3f} ({low:.3f} – {high:.3f})" for mean, low, high in found.values()]
            lines.append([traffic, *cells])
    header = ["traffic", "tok/s ÷ best other (95 %)", "TTFT P99 ÷ best other (95 %)"]
    return report.table(header, lines) if lines else ""


def _ablation_table(results: Results) -> str:
    header = ["traffic, ÷ whole policy", *(f"without {term.removesuffix('_ms')}" for term in TERMS)]
    lines = []
    for traffic in (*POPULARITIES, *TRAFFIC):
        for key, name in (("tok_s", "tok/s"), ("ttft_p99_ms", "TTFT P99"), ("e2e_mean_ms", "E2E mean")):
            cells = []
            for term in TERMS:
                runs = _of(results, traffic, ABLATED + term)
                whole = _of(results, traffic, COST)[: len(runs)]
                cells.append(f"{_mean(runs, key) / _mean(whole, key):.2f}" if runs and whole else "–")
            lines.append([f"{traffic}: {name}", *cells])
    return report.table(header, lines)


def _wishes_table(results: Results) -> str:
    """What the terms do that play no part in recorded traffic."""
    lines = []
    for traffic, (_, term) in WISHES.items():
        for policy in (COST, ABLATED + term):
            if runs := _of(results, traffic, policy):
                kept = f"{_mean(runs, 'kept'):.1%}" if "kept" in runs[0] else "–"
                others = report.number(_mean(runs, "others_e2e_mean_ms")) if "kept" in runs[0] else "–"
                light = f"{_mean(runs, 'light_tokens'):.1%}" if "light_tokens" in runs[0] else "–"
                name = policy.removesuffix("_ms")
                lines.append([traffic, name, kept, others, light, report.number(_mean(runs, "e2e_mean_ms"))])
    header = [
        "traffic",
        "policy",
        "promises kept",
        "E2E mean ms of the others",
        "tokens computed by light workers",
        "E2E mean ms",
    ]
    return report.table(header, lines) if lines else ""


def _positive_table(results: Results) -> str:
    header = ["share of decisions in which it is above 0", *(term.removesuffix("_ms") for term in TERMS)]
    lines = []
    for traffic in (*POPULARITIES, *TRAFFIC):
        runs = [one for one in _of(results, traffic, COST) if "positive" in one]
        if runs:
            total = sum(one["requests"] for one in runs)
            cells = [f"{sum(one['positive'].get(term, 0) for one in runs) / total:.0%}" for term in TERMS]
            lines.append([traffic, *cells])
    return report.table(header, lines) if lines else ""


def _calibration_table(results: Results) -> str:
    """Of the first seed: tenths of what was predicted, and what came true of each."""
    parts = []
    for name, what in (("ttft", "Time to the first token"), ("decode", "From the first token to the last")):
        lines = []
        for traffic in (*POPULARITIES, *TRAFFIC):
            runs = [one for one in _of(results, traffic, COST) if "calibration" in one]
            if runs:
                tenths = runs[0]["calibration"][name]
                cells = [f"{said:,.0f} → {p50:,.0f} ({p10:,.0f} – {p90:,.0f})" for said, p10, p50, p90 in tenths[1::2]]
                lines.append([traffic, *cells])
        if lines:
            header = [f"{what}, ms: predicted → median seen (P10 – P90)", *(f"tenth {n}" for n in (2, 4, 6, 8, 10))]
            parts.append(report.table(header, lines))
    return "\n\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, nothing written")
    parser.add_argument("--jobs", type=int, help="simulations side by side; default: a core each")
    arguments = parser.parse_args()
    options = Options(jobs=arguments.jobs)
    if arguments.quick:
        options = Options(seeds=1, traffic_seeds=1, ablation_seeds=0, jobs=arguments.jobs)
    status = carry_out(
        "cost_quality",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=PAGE,
    )
    if status == 0 and not arguments.quick:
        calibration_plot.draw()
    return status


if __name__ == "__main__":
    sys.exit(main())
