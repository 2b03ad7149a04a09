"""What choosing workers by their caches brings over choosing them at random, on prompts with shared beginnings.

usage: scripts/bench random_or_best [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.capacity_runs import POLICIES, Run, setup
from harness.command import carry_out
from harness.pool import in_parallel
from harness.shared_prompts import WARM_UP, staged
from pointsman.app.experiments.measures import Kind
from pointsman.app.experiments.statistics import difference
from pointsman.app.simulate.run import simulate

BASE = "random"
OTHERS = ("least requests", "pointsman prefix", "pointsman kv")
POPULARITIES = ("uniform", "zipf")
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    rates: tuple[float, ...] = (6.0, 12.0, 15.0, 18.0, 30.0)
    """Requests a second."""
    requests: int = 2_000
    """Counted, after a warm-up of 750."""
    seeds: int = 4
    jobs: int | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    policy: str
    popularity: str
    rate: float
    requests: int
    seed: int


def simulate_case(case: Case) -> dict[str, Any]:
    """TTFT of the counted requests."""
    stages = (WARM_UP, (case.rate, case.requests / case.rate))
    run = Run(policy=case.policy, seed=case.seed, popularity=case.popularity, stages=stages)
    workload = staged(case.seed, popularity=case.popularity, stages=stages)
    outcome = simulate(workload.trace, setup(run), POLICIES[case.policy](), seed=case.seed)
    counted = np.array(workload.stage) == 1
    ttft_ms = outcome.ttft_ms[counted]
    span_s = (float(outcome.end_ms[counted].max()) - workload.starts_ms[1]) / 1000
    return {
        **msgspec.to_builtins(case),
        "ttft_p50_s": float(np.percentile(ttft_ms, 50)) / 1000,
        "ttft_p99_s": float(np.percentile(ttft_ms, 99)) / 1000,
        "tok_s": float(outcome.output_tokens[counted].sum()) / span_s,
        "hit": float(outcome.cached_tokens[counted].sum() / outcome.prompt_tokens[counted].sum()),
    }


def run(options: Options) -> Results:
    """All policies on the same arrivals and prompts, seed by seed."""
    cases = [
        Case(policy=policy, popularity=popularity, rate=rate, requests=options.requests, seed=seed)
        for popularity in POPULARITIES
        for rate in options.rates
        for policy in (BASE, *OTHERS)
        for seed in range(options.seeds)
    ]
    label = "{0.popularity} {0.rate:g}/s {0.policy} {0.seed}".format
    return {"runs": in_parallel(simulate_case, cases, options.jobs, label), "rates": options.rates}


def _values(results: Results, key: str, **wanted: Any) -> list[float]:
    return [one[key] for one in results["runs"] if all(one[name] == value for name, value in wanted.items())]


def summary(results: Results) -> dict[str, Any]:
    """Change of P99 TTFT against random: popularity → rate → policy → (value, low, high), -0.4 = 40 % less."""
    found: dict[str, Any] = {}
    for popularity in POPULARITIES:
        for rate in results["rates"]:
            here = {"popularity": popularity, "rate": rate}
            base = _values(results, "ttft_p99_s", policy=BASE, **here)
            row = found.setdefault(popularity, {}).setdefault(f"{rate:g}", {})
            for policy in OTHERS:
                change = difference(_values(results, "ttft_p99_s", policy=policy, **here), base, Kind.POSITIVE)
                row[policy] = (change.value, change.low, change.high) if change else None
    return found


def markdown(results: Results) -> str:
    """One table a popularity."""
    changes = summary(results)
    parts = []
    for popularity in POPULARITIES:
        header = [f"requests/s, {popularity}", "random: TTFT P50 s", "P99 s", "tok/s", "hit"]
        header += [text for policy in OTHERS for text in (f"{policy}: P99 s", "against random")]
        lines = []
        for rate in results["rates"]:
            here = {"popularity": popularity, "rate": rate}
            line = [f"{rate:g}"]
            for key, digits in (("ttft_p50_s", 2), ("ttft_p99_s", 2), ("tok_s", 0), ("hit", 2)):
                line.append(report.number(statistics.fmean(_values(results, key, policy=BASE, **here)), digits))
            for policy in OTHERS:
                p99 = statistics.fmean(_values(results, "ttft_p99_s", policy=policy, **here))
                line += [report.number(p99, 2), _change(changes[popularity][f"{rate:g}"][policy])]
            lines.append(line)
        parts.append(report.table(header, lines))
    return "\n\n".join(parts)


def _change(change: tuple[float, float | None, float | None] | None) -> str:
    if change is None:
        return "–"
    value, low, high = change
    return f"{value:+.1%}" if low is None or high is None else f"{value:+.1%} ({low:+.1%} … {high:+.1%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, three loads, nothing written")
    parser.add_argument("--jobs", type=int, help="simulations side by side; all cores otherwise")
    arguments = parser.parse_args()
    options = Options(jobs=arguments.jobs)
    if arguments.quick:
        options = Options(rates=(8.0, 16.0, 30.0), seeds=2, requests=1_000, jobs=arguments.jobs)
    return carry_out(
        "random_or_best",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PROOFS_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
