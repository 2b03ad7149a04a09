"""The placement solver against integer programming on random small clusters: what is missed, what is not optimal.

usage: scripts/bench placement_oracle [--quick]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

import msgspec

from harness import report
from harness.command import carry_out
from harness.noise import NoiseMeter
from harness.placement_cases import random_gang, random_state
from harness.placement_check import faults
from harness.placement_oracle import least_cost
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.solver import place

Results = dict[str, Any]
RIGHT = ("placed, same cost", "not placed, none exists")
VERDICTS = (*RIGHT, "missed", "placed, other cost", "placed, none exists", "invalid")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    cases: int = 10_000
    first_seed: int = 100_000
    """Seeds that the tests do not use."""
    most_nodes: int = 8
    budget_s: float = 1.0


def run(options: Options) -> Results:
    """Every case once, by both."""
    noise = NoiseMeter()
    counts: Counter[str] = Counter()
    ours_s = oracle_s = slowest_s = 0.0
    wrong: list[int] = []
    for seed in range(options.first_seed, options.first_seed + options.cases):
        rng = random.Random(seed)
        state = random_state(rng, options.most_nodes)
        gang = random_gang(rng, state)
        started = time.perf_counter()
        found = place(state, gang, budget_s=options.budget_s, clock_s=time.perf_counter, elastic=False, explained=False)
        between = time.perf_counter()
        best = least_cost(state, gang)
        oracle_s += time.perf_counter() - between
        ours_s += between - started
        slowest_s = max(slowest_s, between - started)
        verdict = _verdict(found.cost if isinstance(found, Placement) else None, best)
        if isinstance(found, Placement):
            counts["statement: " + str(found.statement)] += 1
            if faults(state, found):
                verdict = "invalid"
        counts[verdict] += 1
        if verdict not in RIGHT:
            wrong.append(seed)
    return {
        "counts": dict(counts),
        "wrong_seeds": wrong,
        "ours_ms": ours_s / options.cases * 1000,
        "slowest_ms": slowest_s * 1000,
        "oracle_ms": oracle_s / options.cases * 1000,
        "foreign_cores": noise.foreign_cores(),
    }


def _verdict(ours: int | None, best: int | None) -> str:
    if ours is None:
        return "not placed, none exists" if best is None else "missed"
    if best is None:
        return "placed, none exists"
    return "placed, same cost" if ours == best else "placed, other cost"


def markdown(results: Results) -> str:
    """Counts of verdicts, and times."""
    rows = [[verdict, report.number(results["counts"].get(verdict, 0))] for verdict in VERDICTS]
    return (
        f"{report.table(['verdict', 'cases'], rows)}\n\nMean time a case: {results['ours_ms']:.1f} ms (slowest "
        f"{results['slowest_ms']:.0f} ms); integer programming {results['oracle_ms']:.1f} ms.\n\n"
        f"{report.noise_line(results['foreign_cores'])}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="300 cases, nothing written")
    arguments = parser.parse_args()
    options = Options(cases=300) if arguments.quick else Options()
    return carry_out(
        "placement_oracle",
        options,
        lambda: run(options),
        markdown,
        keep=not arguments.quick,
        page=report.PLACEMENT_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
