"""How long placing a gang takes: gangs of several shapes on 64 to 5,000 nodes, empty and in use.

usage: scripts/bench placement_scale [--quick]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from harness import placement_plot, report
from harness.command import carry_out
from harness.noise import NoiseMeter
from harness.placement_fleets import fleet, gangs
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.solver import place

Results = dict[str, Any]
BAR_SHAPE = "512×8"
BARS_S = {512: 1.0, 5000: 5.0}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    nodes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 5000)
    use: tuple[float, ...] = (0.0, 0.5)
    rounds: int = 3
    budget_s: float = 5.0
    first_seed: int = 1
    """Of the pods of others; each round has a seed of its own."""


def measure(options: Options, nodes: int, use: float, shape: str) -> dict[str, Any]:
    """One shape on as many clusters as there are rounds."""
    gang, elapsed, found = gangs()[shape], [], []
    for round_ in range(options.rounds):
        state = fleet(nodes, use, options.first_seed + round_)
        started = time.perf_counter()
        answer = place(state, gang, budget_s=options.budget_s, clock_s=time.perf_counter, explained=False)
        elapsed.append(time.perf_counter() - started)
        found.append(answer)
    placed = [answer for answer in found if isinstance(answer, Placement)]
    unproved = [answer for answer in found if not isinstance(answer, Placement) and not answer.proved]
    return {
        "nodes": nodes,
        "use": use,
        "shape": shape,
        "s": elapsed,
        "placed": len(placed),
        "optimal": sum(str(answer.statement) == "optimal" for answer in placed),
        "gaps": [answer.cost - answer.bound for answer in placed],
        "costs": [answer.cost for answer in placed],
        "unproved": len(unproved),
        "spread": [{level.level: level.domains for level in answer.spread} for answer in placed],
    }


def run(options: Options) -> Results:
    """Every shape on every cluster."""
    noise = NoiseMeter()
    rows = []
    for use in options.use:
        for nodes in options.nodes:
            for shape in gangs():
                rows.append(measure(options, nodes, use, shape))
                print(f"  {nodes} {use} {shape}: {max(rows[-1]['s']):.2f} s", file=sys.stderr, flush=True)
    return {"rows": rows, "foreign_cores": noise.foreign_cores()}


def summary(results: Results) -> Mapping[str, Any]:
    """Medians, worst, and how time grows with nodes (slope of log time over log nodes)."""
    found: dict[str, Any] = {}
    for row in results["rows"]:
        key = f"{row['shape']}, {row['use']:.0%} use"
        times = found.setdefault(key, {"median_s": {}, "worst_s": {}})
        times["median_s"][str(row["nodes"])] = statistics.median(row["s"])
        times["worst_s"][str(row["nodes"])] = max(row["s"])
    for shape, use in dict.fromkeys((row["shape"], row["use"]) for row in results["rows"]):
        found[f"{shape}, {use:.0%} use"]["growth"] = _growth(results, shape, use)
    return found


def _growth(results: Results, shape: str, use: float) -> float | None:
    """Over the sizes on which the gang was placed."""
    seconds = {
        row["nodes"]: statistics.median(row["s"])
        for row in results["rows"]
        if (row["shape"], row["use"]) == (shape, use) and row["placed"]
    }
    points = [(math.log(nodes), math.log(value)) for nodes, value in seconds.items()]
    if len(points) < 2:
        return None
    x, y = [point[0] for point in points], [point[1] for point in points]
    return statistics.linear_regression(x, y).slope


def markdown(results: Results) -> str:
    """Milliseconds by shape and size, and what was proved."""
    sizes = sorted({row["nodes"] for row in results["rows"]})
    lines = []
    for shape, use in dict.fromkeys((row["shape"], row["use"]) for row in results["rows"]):
        rows = {row["nodes"]: row for row in results["rows"] if (row["shape"], row["use"]) == (shape, use)}
        lines.append(
            [
                shape,
                f"{use:.0%}",
                *(_cell(rows[nodes]) for nodes in sizes),
                report.number(_growth(results, shape, use), 2),
            ]
        )
    header = ["gang", "in use", *(f"{nodes:,} nodes" for nodes in sizes), "growth"]
    worst = {
        nodes: max(max(row["s"]) for row in results["rows"] if row["shape"] == BAR_SHAPE and row["nodes"] == nodes)
        for nodes in BARS_S
        if nodes in sizes
    }
    bars = "; ".join(
        f"{BAR_SHAPE} on {nodes:,} nodes: worst {seconds:.2f} s, bar {BARS_S[nodes]:g} s"
        for nodes, seconds in worst.items()
    )
    return (
        f"{report.table(header, lines)}\n\nMedian ms to place the gang. **bold**: proved to have the least spread in "
        "every round; a number in brackets: the largest gap that was left when the time was over, in the topology's "
        f"costs; –: proved not to fit; ?: time was over. Growth: exponent of time over nodes. {bars}.\n\n"
        f"{report.noise_line(results['foreign_cores'])}"
    )


def _cell(row: Mapping[str, Any]) -> str:
    text = report.number(statistics.median(row["s"]) * 1000, 0)
    if row["placed"] == 0:
        return f"{text} {'?' if row['unproved'] else '–'}"
    if row["optimal"] == row["placed"]:
        return f"**{text}**"
    return f"{text} [{max(row['gaps'])}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round on 64 and 512 nodes, nothing written")
    arguments = parser.parse_args()
    options = Options(nodes=(64, 512), rounds=1, budget_s=2.0) if arguments.quick else Options()
    status = carry_out(
        "placement_scale",
        options,
        lambda: run(options),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PLACEMENT_PAGE,
    )
    if status == 0 and not arguments.quick:
        placement_plot.draw()
    return status


if __name__ == "__main__":
    sys.exit(main())
