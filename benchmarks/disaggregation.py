"""Prefill and decode apart, by request: the cost policy's choice against always, never and fixed thresholds, in the
simulator of requests; and a fleet of two kinds of GPUs, divided by stage and not.

usage: scripts/bench disaggregation [--quick] [--jobs N]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness import report
from harness.apart_runs import (
    FLEETS,
    LINKS,
    LOADS,
    MIXED,
    MIXED_WORKLOADS,
    THRESHOLDS,
    WORKLOADS,
    ApartRun,
    carry_out_apart,
)
from harness.command import carry_out
from harness.pool import in_parallel

PAGE = Path(__file__).resolve().parent.parent / "docs" / "disaggregation.md"
WORST = 1.05
"""Mean TTFT of auto over the better one of always and never, at most."""
Results = dict[str, Any]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    seeds: int = 3
    requests: int = 600
    jobs: int | None = None
    threshold_load: str = "medium"
    beliefs: tuple[float, ...] = (0.5, 2.0)
    """Speed of links as believed at first, over the true one; only transfers correct it."""


def runs_of(options: Options) -> list[ApartRun]:
    """Everything that is simulated. `never` needs no link: its runs have the first one."""
    runs = []
    for seed in range(options.seeds):
        more: dict[str, Any] = {"seed": seed, "requests": options.requests}
        for fleet in FLEETS:
            for workload in WORKLOADS:
                for load in LOADS:
                    of: dict[str, Any] = {"fleet": fleet, "workload": workload, "load": load, **more}
                    runs.append(ApartRun(rule="never", **of))
                    for link in LINKS:
                        rules = ("always", "auto", *(THRESHOLDS if load == options.threshold_load else ()))
                        runs += [ApartRun(rule=rule, link=link, **of) for rule in rules]
                of = {"fleet": fleet, "workload": workload, "load": options.threshold_load, **more}
                runs.append(ApartRun(rule="auto, no pulls", **of))
                runs += [ApartRun(rule="auto", believed_speed=speed, **of) for speed in options.beliefs]
        for fleet, rules in MIXED.items():
            for workload in MIXED_WORKLOADS:
                for load in LOADS:
                    for link in ("100 GbE", "25 GbE"):
                        of = {"fleet": fleet, "workload": workload, "load": load, "link": link, **more}
                        runs += [ApartRun(rule=rule, **of) for rule in rules]
    return list(dict.fromkeys(runs))


def run(options: Options) -> Results:
    """All runs, several side by side."""
    runs = runs_of(options)
    label = lambda one: f"{one.fleet}, {one.workload}, {one.load}, {one.link}: {one.rule} {one.seed}"  # noqa: E731
    return {"runs": in_parallel(carry_out_apart, runs, options.jobs, label)}


class Table:
    """Means over the seeds, by what a run was given."""

    def __init__(self, results: Results) -> None:
        self._found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for one in results["runs"]:
            key = self._key(**{name: value for name, value in one["run"].items() if name != "requests"})
            self._found.setdefault(key, []).append(one)

    @staticmethod
    def _key(
        *, fleet: str, workload: str, load: str, rule: str, link: str, believed_speed: float = 1.0, seed: int = 0
    ) -> tuple[Any, ...]:
        return fleet, workload, load, rule, None if rule == "never" else link, believed_speed

    def mean(self, key: str, **of: Any) -> float:
        """nan where it was not simulated."""
        found = self._found.get(self._key(**of), [])
        return statistics.fmean(one[key] for one in found) if found else math.nan

    def worse(self, **of: Any) -> float:
        """Mean TTFT of auto over that of the better one of always and never."""
        rules = {"always": "always", "never": "never"}
        best = min(self.mean("ttft_mean_ms", **{**of, "rule": rule}) for rule in rules)
        return self.mean("ttft_mean_ms", **{**of, "rule": "auto"}) / best


def summary(results: Results) -> dict[str, Any]:
    """What the bars are judged by."""
    table = Table(results)
    worst: dict[str, float] = {}
    for fleet in FLEETS:
        ratios = [
            table.worse(fleet=fleet, workload=workload, load=load, link=link)
            for workload in WORKLOADS
            for load in LOADS
            for link in LINKS
        ]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        worst[fleet] = max(known) if known else math.nan
    return {"worst_to_best_of_always_and_never": worst}


def markdown(results: Results) -> str:
    """The tables of the page."""
    table = Table(results)
    parts = [_grid(table, fleet) for fleet in FLEETS]
    parts += [_thresholds(table, fleet) for fleet in FLEETS]
    parts += [_beliefs(table), _mixed(table), _worst_line(results)]
    return "\n\n".join(part for part in parts if part)


def _grid(table: Table, fleet: str) -> str:
    header = [f"{fleet}: mean TTFT ms", "load", "never"]
    for link in LINKS:
        header += [f"{link}: always", "auto", "÷ better"]
    rows = []
    for workload in WORKLOADS:
        for load in LOADS:
            of: dict[str, Any] = {"fleet": fleet, "workload": workload, "load": load}
            row = [workload, load, _ms(table.mean("ttft_mean_ms", rule="never", link="", **of))]
            for link in LINKS:
                row += [_ms(table.mean("ttft_mean_ms", rule=rule, link=link, **of)) for rule in ("always", "auto")]
                row.append(_times(table.worse(link=link, **of)))
            rows.append(row)
    return report.table(header, rows)


def _thresholds(table: Table, fleet: str) -> str:
    rules = ("never", "always", "auto", *THRESHOLDS)
    header = [f"{fleet}, medium load: mean TTFT ms / TPOT ms / E2E s", "link", *rules]
    rows = []
    for workload in WORKLOADS:
        for link in LINKS:
            of: dict[str, Any] = {"fleet": fleet, "workload": workload, "load": "medium", "link": link}
            rows.append([workload, link, *(_three(table, rule=rule, **of) for rule in rules)])
    return report.table(header, rows)


def _three(table: Table, **of: Any) -> str:
    ttft, tpot, e2e = (table.mean(key, **of) for key in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"))
    if math.isnan(ttft):
        return "–"
    return f"{_ms(ttft)} / {report.number(tpot, 1)} / {report.number(e2e / 1000, 1)}"


def _beliefs(table: Table) -> str:
    header = ["medium load, 100 GbE: mean TTFT ms", "fleet", "auto", "links believed half as fast", "twice as fast"]
    header += ["without pulls", "prompts apart", "fetched in part"]
    rows = []
    for workload in WORKLOADS:
        for fleet in FLEETS:
            of: dict[str, Any] = {"fleet": fleet, "workload": workload, "load": "medium", "link": "100 GbE"}
            ttft = [table.mean("ttft_mean_ms", rule="auto", believed_speed=speed, **of) for speed in (1.0, 0.5, 2.0)]
            ttft.append(table.mean("ttft_mean_ms", rule="auto, no pulls", **of))
            shares = [table.mean(key, rule="auto", **of) for key in ("apart", "pulled")]
            rows.append([workload, fleet, *(_ms(value) for value in ttft), *(_percent(share) for share in shares)])
    return report.table(header, rows)


def _mixed(table: Table) -> str:
    header = ["2 × A100 and 4 × RTX 4090, Llama-8B", "load", "link"]
    columns = [(fleet, rule) for fleet, rules in MIXED.items() for rule in rules]
    header += [f"{fleet}, {rule}" for fleet, rule in columns]
    rows = []
    for workload in MIXED_WORKLOADS:
        for load in LOADS:
            for link in ("100 GbE", "25 GbE"):
                of: dict[str, Any] = {"workload": workload, "load": load, "link": link}
                cells = [_three(table, fleet=fleet, rule=rule, **of) for fleet, rule in columns]
                rows.append([f"{workload}: mean TTFT ms / TPOT ms / E2E s", load, link, *cells])
    return report.table(header, rows)


def _worst_line(results: Results) -> str:
    worst = summary(results)["worst_to_best_of_always_and_never"]
    told = ", ".join(f"{fleet} {value:.3f}" for fleet, value in worst.items())
    return f"Mean TTFT of *auto* over the better one of *always* and *never*, worst of all: {told}."


def _ms(value: float) -> str:
    return "–" if math.isnan(value) else report.number(value)


def _times(value: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.2f}"
    return f"**{text}**" if value > WORST else text


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, 200 requests a run, nothing written")
    parser.add_argument("--seeds", type=int, default=3, help="traffic made anew so many times")
    parser.add_argument("--requests", type=int, default=600, help="of each run")
    parser.add_argument("--jobs", type=int, help="simulations side by side; all cores otherwise")
    given = parser.parse_args(arguments)
    options = Options(seeds=given.seeds, requests=given.requests, jobs=given.jobs)
    if given.quick:
        options = Options(seeds=1, requests=200, jobs=given.jobs)
    return carry_out(
        "disaggregation",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not given.quick,
        page=PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
