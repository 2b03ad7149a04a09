"""llm-d's capacity benchmark simulated: four routing policies as published, and more of them beside pointsman's own.

usage: scripts/bench llmd_capacity [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harness import report
from harness.capacity_runs import POLICIES, SATURATED_MS, Run, carry_out_run
from harness.command import carry_out
from harness.data import data_file
from harness.pool import in_parallel

PUBLISHED = {
    "llm-d precise 3/2/2": "precise-scheduling",
    "llm-d estimated 1/1/1": "estimated-scheduling",
    "random": "random-scheduling",
    "llm-d load": "load-scheduling",
}
"""Policy → its name in the published table, best first."""
DEFAULT_POLICY = "pointsman cost"
"""What `auto`, the default, decides by."""
POPULARITIES = ("uniform", "zipf")
SENSITIVITY: Mapping[str, Mapping[str, Any]] = {
    "as above": {},
    "250 output tokens": {"output_tokens": 250},
    "1,000 output tokens": {"output_tokens": 1_000},
    "answers stay in the cache, as vLLM keeps them": {"answers_cached": True},
    "KV pool 5 % smaller": {"kv_tokens": 291_962},
    "220 ms of front end": {"front_end_ms": 220.0},
    "load of the engines read each second": {"metrics_every_ms": 1_000.0},
    "blocks of 16 tokens": {"block_tokens": 16},
}
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    seeds: int = 3
    jobs: int | None = None
    policies: tuple[str, ...] = tuple(POLICIES)
    popularities: tuple[str, ...] = POPULARITIES
    sensitivity: bool = True


def published() -> dict[str, list[dict[str, float]]]:
    """Policy → its stages in the order of rates."""
    with data_file("reference-results/llmd_73_capacity.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    found = {}
    for policy, name in PUBLISHED.items():
        found[policy] = sorted(
            (
                {
                    "rate": float(row["qps"]),
                    "tok_s": float(row["output_tok_s"]),
                    "ttft_p90_s": float(row["ttft_p90_s"]),
                    "ttft_mean_s": float(row["ttft_mean_s"]),
                }
                for row in rows
                if row["policy"] == name
            ),
            key=lambda stage: stage["rate"],
        )
    return found


def run(options: Options) -> Results:
    """All runs: policies × popularities × seeds, then the sensitivity of the published four."""
    known = published()
    runs = [
        Run(policy=policy, popularity=popularity, seed=seed)
        for popularity in options.popularities
        for policy in options.policies
        for seed in range(options.seeds)
    ]
    if options.sensitivity:
        runs += [Run(policy=policy, **what) for what in SENSITIVITY.values() if what for policy in PUBLISHED]
    done = in_parallel(carry_out_run, runs, options.jobs, lambda one: f"{one.popularity} {one.policy} {one.seed}")
    return {"published": known, "runs": done}


def _of(results: Results, **wanted: Any) -> list[dict[str, Any]]:
    """Runs whose options are those wanted and else the defaults."""
    plain = msgspec.to_builtins(Run(policy="", **{key: value for key, value in wanted.items() if key != "policy"}))
    plain["policy"] = wanted.get("policy")
    keys = [key for key in plain if key not in ("seed", "policy")]
    return [
        one
        for one in results["runs"]
        if one["run"]["policy"] == plain["policy"]
        and ("seed" not in wanted or one["run"]["seed"] == wanted["seed"])
        and all(one["run"][key] == plain[key] for key in keys)
    ]


def _mean(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.fmean(one[key] for one in runs)


def _knee(stages: Sequence[Mapping[str, float]]) -> float | None:
    return next((stage["rate"] for stage in stages if stage["ttft_mean_s"] * 1000 > SATURATED_MS), None)


def summary(results: Results) -> dict[str, Any]:
    """What the bars are judged by."""
    deviations = {}
    for policy, stages in results["published"].items():
        runs = _of(results, policy=policy, popularity="uniform")
        if runs:
            deviations[policy] = _mean(runs, "tok_s") / _mean(stages, "tok_s") - 1
    ratios = {}
    for popularity in POPULARITIES:
        by_policy = {policy: _of(results, policy=policy, popularity=popularity) for policy in POLICIES}
        tok_s = {policy: _mean(runs, "tok_s_of_all") for policy, runs in by_policy.items() if runs}
        if DEFAULT_POLICY in tok_s:
            ratios[popularity] = tok_s[DEFAULT_POLICY] / max(tok_s.values())
    return {
        "deviations": deviations,
        "in_order": in_order(results),
        "same_knees": same_knees(results),
        "default_to_best": ratios,
    }


def in_order(results: Results) -> bool:
    """Whether of any two policies whose published tok/s are 5 % apart the same one is ahead here."""
    pairs = [
        (_mean(stages, "tok_s"), _mean(_of(results, policy=policy, popularity="uniform"), "tok_s"))
        for policy, stages in results["published"].items()
    ]
    return all(ours > others for theirs, ours in pairs for its, others in pairs if theirs > 1.05 * its)


def same_knees(results: Results) -> bool:
    """Whether each policy saturates at the published stage, in most seeds."""
    return all(
        statistics.mode(one["knee"] for one in _of(results, policy=policy, popularity="uniform")) == _knee(stages)
        for policy, stages in results["published"].items()
    )


def markdown(results: Results) -> str:
    """The tables of the page."""
    parts = [_published_table(results), _verdict(results), _all_table(results)]
    if any(one["run"]["output_tokens"] != 500 for one in results["runs"]):
        parts.append(_sensitivity_table(results))
    return "\n\n".join(parts)


def _published_table(results: Results) -> str:
    header = ["policy", "tok/s published", "simulated", "±", "at 60/s published", "simulated"]
    header += ["TTFT p90 s published", "simulated", "TTFT mean s published", "simulated", "knee published", "simulated"]
    lines = []
    for policy, stages in results["published"].items():
        runs = _of(results, policy=policy, popularity="uniform")
        if not runs:
            continue
        tok_s, theirs = _mean(runs, "tok_s"), _mean(stages, "tok_s")
        last = statistics.fmean(one["stages"][-1]["tok_s"] for one in runs)
        knees = sorted({_rate(one["knee"]) for one in runs})
        lines.append(
            [
                policy,
                report.number(theirs),
                report.number(tok_s),
                f"{tok_s / theirs - 1:+.1%}",
                report.number(stages[-1]["tok_s"]),
                report.number(last),
                report.number(_mean(stages, "ttft_p90_s"), 2),
                report.number(_mean(runs, "ttft_p90_s"), 2),
                report.number(_mean(stages, "ttft_mean_s"), 2),
                report.number(_mean(runs, "ttft_mean_s"), 2),
                _rate(_knee(stages)),
                " – ".join(knees),
            ]
        )
    return report.table(header, lines)


def _verdict(results: Results) -> str:
    found = summary(results)
    largest = max(found["deviations"].values(), key=abs)
    order = "in the published order" if found["in_order"] else "**not in the published order**"
    knees = "the same" if found["same_knees"] else "**not all the same**"
    return (
        f"Largest deviation of tok/s: {largest:+.1%}. Policies whose published tok/s are 5 % apart or more are "
        f"{order}; knees are {knees}."
    )


def _rate(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:g}/s"


def _spread(values: Sequence[float], digits: int) -> str:
    least, most = report.number(min(values), digits), report.number(max(values), digits)
    return least if least == most else f"{least} – {most}"


def _all_table(results: Results) -> str:
    header = ["policy"]
    for popularity in POPULARITIES:
        header += [f"{popularity} tok/s (seeds)", "÷ best", "TTFT p90 s", "TPOT ms at 60/s", "hit"]
    by_policy = {
        (policy, popularity): _of(results, policy=policy, popularity=popularity)
        for policy in POLICIES
        for popularity in POPULARITIES
    }
    best = {
        popularity: max(
            (
                _mean(by_policy[policy, popularity], "tok_s_of_all")
                for policy in POLICIES
                if by_policy[policy, popularity]
            ),
            default=0.0,
        )
        for popularity in POPULARITIES
    }
    lines = []
    for policy in POLICIES:
        line = [policy]
        for popularity in POPULARITIES:
            runs = by_policy[policy, popularity]
            if not runs:
                line += ["–"] * 5
                continue
            line += [
                f"{_spread([one['tok_s_of_all'] for one in runs], 0)} ({len(runs)})",
                report.number(_mean(runs, "tok_s_of_all") / best[popularity], 3),
                report.number(_mean(runs, "ttft_p90_of_all_s"), 2),
                report.number(statistics.fmean(one["stages"][-1]["tpot_mean_ms"] for one in runs), 0),
                report.number(_mean(runs, "hit"), 3),
            ]
        lines.append(line)
    return report.table(header, lines)


def _sensitivity_table(results: Results) -> str:
    lines = []
    for name, what in SENSITIVITY.items():
        tok_s = []
        for policy in PUBLISHED:
            runs = _of(results, policy=policy, seed=0, **what)
            tok_s.append(report.number(_mean(runs, "tok_s")) if runs else "–")
        if set(tok_s) != {"–"}:
            lines.append([name, *tok_s])
    return report.table(["tok/s with", *PUBLISHED], lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the published policies with one seed, nothing written")
    parser.add_argument("--jobs", type=int, help="simulations side by side; all cores otherwise")
    arguments = parser.parse_args()
    options = Options(jobs=arguments.jobs)
    if arguments.quick:
        options = Options(
            seeds=1,
            jobs=arguments.jobs,
            policies=(*PUBLISHED, DEFAULT_POLICY),
            popularities=("uniform",),
            sensitivity=False,
        )
    return carry_out(
        "llmd_capacity",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PROOFS_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
