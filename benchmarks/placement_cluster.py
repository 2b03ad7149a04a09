"""Whole gangs against pods and roles by themselves, on simulated clusters: deadlocks, a busy day, and how long a cycle
with many waiting gangs takes.

usage: scripts/bench placement_cluster [--quick] [--html FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness import report
from harness.command import carry_out
from harness.noise import NoiseMeter
from peers_placement.kai_like import KaiLike
from peers_placement.pod_by_pod import PodByPod
from pointsman.app.placements.report.page import Facts, cluster_report, shown
from pointsman.app.placements.simulation.demand import HOUR_S, Demand, Job, made_jobs, usual_kinds
from pointsman.app.placements.simulation.outages import Outages, made_outages
from pointsman.app.placements.simulation.outcome import MEASURES, Outcome
from pointsman.app.placements.simulation.run import Pace, run_cluster
from pointsman.app.placements.simulation.scheduler import GangScheduler, Scheduler
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.made_cluster import MadeCluster, made_cluster
from pointsman.core.placement.queues.cycle import cycle
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState

Results = dict[str, Any]
GPUS_A_NODE = 8
CYCLE_BAR_S = 10.0
SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "pointsman": GangScheduler,
    "pods, packed": PodByPod,
    "pods, spread": lambda: PodByPod(packed=False),
    "greedy gangs": KaiLike,
    "greedy roles": lambda: KaiLike(separate=True),
}
"""Names as in the tables; the first one is ours."""
DAY_MEASURES = (
    *("placed_share", "partial_gang_s", "idle_partial_share", "stuck_share", "whole_share", "broken_share"),
    *("racks", "distance", "wait_p50_s", "wait_p99_s", "preempted_gpu_h"),
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded with the results."""

    day_nodes: int = 256
    day_hours: float = 24.0
    day_loads: tuple[float, ...] = (0.8, 1.1)
    day_seeds: int = 3
    fails_every_h: float = 1_000.0
    rush_nodes: int = 64
    rush_loads: tuple[float, ...] = (0.8, 1.0, 1.2, 1.5, 2.0)
    rush_seeds: int = 20
    cycle_nodes: tuple[int, ...] = (512, 5_000)
    cycle_gangs: tuple[int, ...] = (125, 250, 500, 1_000)
    largest_nodes: int = 5_000
    largest_hours: float = 1.0


def two_deployments(scheduler: Scheduler) -> dict[str, Any]:
    """Two of 28 nodes each on 32 nodes, at the same moment; each has to run for an hour."""
    cluster, topology = made_cluster(MadeCluster(32), np.random.default_rng(0))
    pods = Resources(8_000, 8_000, 2**36)
    groups = tuple(RoleGroup(role, 14, 14, pods, stage=role) for role in ("prefill", "decode"))
    jobs = [Job(Gang(name, groups), HOUR_S) for name in ("first", "second")]
    found = run_cluster(cluster, topology, jobs, (), scheduler, 24 * HOUR_S, pace=Pace(look_again_s=HOUR_S))
    return {"finished": found.finished, "stuck": found.stuck, "idle_share": found.partial_gpu_s / found.up_gpu_s}


def rush(options: Options, load: float, seed: int, scheduler: Scheduler) -> dict[str, float]:
    """Deployments that all come within a minute and stay: who is whole in the end, and what is held for nothing."""
    cluster, topology = made_cluster(MadeCluster(options.rush_nodes), np.random.default_rng(seed))
    gpus = options.rush_nodes * GPUS_A_NODE
    kinds = tuple(kind for kind in usual_kinds(topology, GPUS_A_NODE, elastic=False) if kind.gang.name != "single")
    rng = np.random.default_rng([seed, 1])
    weights = np.array([kind.weight for kind in kinds])
    jobs: list[Job] = []
    asked = 0.0
    while asked < load * gpus:
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        at_s = float(rng.uniform(0, 60))
        jobs.append(Job(replace(kind.gang, name=f"{kind.gang.name}-{len(jobs)}", submitted_at_s=at_s), 1e9))
        asked += kind.gpus
    found = run_cluster(cluster, topology, jobs, (), scheduler, HOUR_S, pace=Pace(look_again_s=600))
    last = found.samples[-1]
    return {
        "deployments": found.gangs,
        "stuck_share": found.stuck / found.gangs,
        "idle_share": last.partial_share,
        "whole_share": last.whole_share,
        "placed_share": found.placed / found.gangs,
    }


def day(options: Options, load: float, seed: int, scheduler: Scheduler) -> Outcome:
    """A mix that comes and goes, with failures; no elastic replicas, so that all hold the same."""
    cluster, topology = made_cluster(MadeCluster(options.day_nodes), np.random.default_rng(seed))
    demand = Demand(usual_kinds(topology, GPUS_A_NODE, elastic=False), load=load, hours=options.day_hours)
    until_s = options.day_hours * HOUR_S
    jobs = made_jobs(demand, options.day_nodes * GPUS_A_NODE, np.random.default_rng([seed, 1]))
    names = [node.name for node in cluster.nodes]
    outages = made_outages(Outages(options.fails_every_h), names, until_s, np.random.default_rng([seed, 2]))
    return run_cluster(cluster, topology, jobs, outages, scheduler, until_s, pace=Pace(look_again_s=300))


def largest(options: Options) -> dict[str, float]:
    """The simulator with ours on a very large cluster: what it costs."""
    cluster, topology = made_cluster(MadeCluster(options.largest_nodes), np.random.default_rng(0))
    demand = Demand(usual_kinds(topology, GPUS_A_NODE), load=0.9, hours=options.largest_hours)
    jobs = made_jobs(demand, options.largest_nodes * GPUS_A_NODE, np.random.default_rng(1))
    names = [node.name for node in cluster.nodes]
    until_s = options.largest_hours * HOUR_S
    outages = made_outages(Outages(options.fails_every_h), names, until_s, np.random.default_rng(2))
    started = time.process_time()
    found = run_cluster(cluster, topology, jobs, outages, GangScheduler(), until_s)
    return {
        "nodes": options.largest_nodes,
        "gangs": found.gangs,
        "outages": len(outages),
        "hours": options.largest_hours,
        "cpu_s": time.process_time() - started,
        "partial_gang_s": found.partial_gang_s,
    }


def one_cycle(nodes: int, gangs: int, distinct: bool) -> dict[str, Any]:
    """A cycle for so many waiting gangs that ask for half as much again as there is; `distinct`: no two alike."""
    cluster, topology = made_cluster(MadeCluster(nodes, used_share=0.2), np.random.default_rng(0))
    state = ClusterState.of(cluster, topology)
    rng = np.random.default_rng([1, gangs])
    kinds = usual_kinds(topology, GPUS_A_NODE)
    weights = np.array([kind.weight for kind in kinds])
    waiting = []
    for number in range(gangs):
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        gang = replace(kind.gang, name=f"g{number}", submitted_at_s=float(number), priority=int(rng.integers(3)))
        if distinct:
            groups = tuple(
                replace(group, requests=replace(group.requests, cpu_milli=group.requests.cpu_milli + number))
                for group in gang.groups
            )
            gang = replace(gang, groups=groups)
        waiting.append(gang)
    started = time.perf_counter()
    result = cycle(state, waiting, {}, 0.0, clock_s=time.perf_counter)
    seconds = time.perf_counter() - started
    # And once more with everything in use and the others waiting still.
    since = dict.fromkeys(result.state.placements, 0.0)
    rest = [gang for gang in waiting if gang.name not in result.state.placements]
    started = time.perf_counter()
    again = cycle(result.state, rest, since, 3_600.0, clock_s=time.perf_counter, reservations=result.reservations)
    late = sum(not each.proved for each in (*result.waiting.values(), *again.waiting.values()))
    return {
        "nodes": nodes,
        "gangs": gangs,
        "distinct": distinct,
        "s": seconds,
        "again_s": time.perf_counter() - started,
        "placed": len(result.state.placements),
        "waiting": len(rest),
        "late": late,
    }


def run(options: Options, html: Path | None = None) -> Results:
    """All parts one after another."""
    noise = NoiseMeter()
    results: Results = {"two": {name: two_deployments(make()) for name, make in SCHEDULERS.items()}}
    results["rush"] = [
        {
            "scheduler": name,
            "load": load,
            "runs": [rush(options, load, seed, make()) for seed in range(options.rush_seeds)],
        }
        for load in options.rush_loads
        for name, make in SCHEDULERS.items()
    ]
    _say("rush")
    results["day"] = []
    for load in options.day_loads:
        outcomes: dict[str, list[Outcome]] = {}
        for name, make in SCHEDULERS.items():
            outcomes[name] = [day(options, load, seed, make()) for seed in range(options.day_seeds)]
            _say(f"day, load {load:g}, {name}")
        results["day"].append(
            {
                "load": load,
                "gangs": [outcome.gangs for outcome in next(iter(outcomes.values()))],
                "runs": {name: [outcome.metrics for outcome in each] for name, each in outcomes.items()},
                "actions": {name: [outcome.actions for outcome in each] for name, each in outcomes.items()},
            }
        )
        if html is not None and load == max(options.day_loads):
            html.write_text(_html(options, load, outcomes), encoding="utf-8")
    results["cycle"] = []
    for nodes in options.cycle_nodes:
        for gangs in options.cycle_gangs:
            for distinct in (False, True):
                results["cycle"].append(one_cycle(nodes, gangs, distinct))
                _say(f"cycle, {nodes} nodes, {gangs} gangs: {results['cycle'][-1]['s']:.2f} s")
    results["largest"] = largest(options)
    return {**results, "foreign_cores": noise.foreign_cores()}


def _html(options: Options, load: float, outcomes: Mapping[str, list[Outcome]]) -> str:
    """The report of the busiest day."""
    gpus = options.day_nodes * GPUS_A_NODE
    title = f"{options.day_nodes:,} nodes, {gpus:,} GPUs"
    return cluster_report(
        Facts(title, options.day_nodes, gpus, options.day_hours, load, ("node", "rack", "zone")), outcomes
    )


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def summary(results: Results) -> Mapping[str, Any]:
    """What bars are judged by."""
    return {
        "partial_gang_s": max(run["partial_gang_s"] for each in results["day"] for run in each["runs"]["pointsman"]),
        "stuck_share": max(
            run["stuck_share"] for each in results["rush"] if each["scheduler"] == "pointsman" for run in each["runs"]
        ),
        "cycle_s": max(max(row["s"], row["again_s"]) for row in results["cycle"] if row["gangs"] == _most(results)),
        "cycle_growth": {
            f"{nodes} nodes, {'distinct' if distinct else 'of few kinds'}": _growth(results, nodes, distinct)
            for nodes, distinct in dict.fromkeys((row["nodes"], row["distinct"]) for row in results["cycle"])
        },
    }


def _most(results: Results) -> int:
    return int(max(row["gangs"] for row in results["cycle"]))


def _growth(results: Results, nodes: int, distinct: bool) -> float | None:
    """Exponent of the time of a cycle over the gangs that wait."""
    points = [
        (math.log(row["gangs"]), math.log(row["s"]))
        for row in results["cycle"]
        if row["nodes"] == nodes and row["distinct"] == distinct
    ]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else None


def markdown(results: Results) -> str:
    """The tables of the page."""
    return "\n\n".join(
        [
            _two_text(results),
            _rush_text(results),
            *(_day_text(each) for each in results["day"]),
            _cycle_text(results),
            report.noise_line(results["foreign_cores"]),
        ]
    )


def _two_text(results: Results) -> str:
    rows = [
        [name, f"{found['finished']} of 2", str(found["stuck"]), f"{found['idle_share']:.0%}"]
        for name, found in results["two"].items()
    ]
    table = report.table(["two deployments", "finished", "hold a part for ever", "GPUs idle in parts"], rows)
    return f"Two deployments of 28 nodes each (14 prefill, 14 decode) on 32 nodes, each to run for an hour:\n\n{table}"


def _rush_text(results: Results) -> str:
    loads = list(dict.fromkeys(each["load"] for each in results["rush"]))
    rows = []
    for name in SCHEDULERS:
        cells = []
        for load in loads:
            runs = next(e["runs"] for e in results["rush"] if (e["scheduler"], e["load"]) == (name, load))
            stuck, idle, whole = (_mean(runs, key) for key in ("stuck_share", "idle_share", "whole_share"))
            cells.append(f"{stuck:.0%} / {idle:.0%} / {whole:.0%}")
        rows.append([name, *cells])
    table = report.table(["stuck / idle / in use", *(f"load {load:g}" for load in loads)], rows)
    seeds = len(results["rush"][0]["runs"])
    return (
        "Deployments that come within a minute and stay (mean of "
        f"{seeds} seeds): of them stuck with a part; GPUs idle in parts; GPUs of whole deployments:\n\n{table}"
    )


def _day_text(each: Mapping[str, Any]) -> str:
    names = list(each["runs"])
    rows = []
    for key in DAY_MEASURES:
        means = [_mean(each["runs"][name], key) for name in names]
        rows.append([MEASURES[key].title, *(shown(MEASURES[key], mean) for mean in means)])
    gangs = ", ".join(f"{count:,}" for count in each["gangs"])
    return f"A day at load {each['load']:g} ({gangs} gangs by seed):\n\n{report.table(['', *names], rows)}"


def _cycle_text(results: Results) -> str:
    rows = [
        [
            f"{row['gangs']:,} {'all different' if row['distinct'] else 'of 5 kinds'}",
            f"{row['nodes']:,}",
            f"{row['placed']:,}",
            report.number(row["s"], 2),
            report.number(row["again_s"], 2),
            f"{row['late']:,}",
        ]
        for row in results["cycle"]
    ]
    header = ["waiting gangs", "nodes", "placed", "s", "s, the next cycle", "without a turn"]
    found, growths = summary(results), []
    for what, slope in found["cycle_growth"].items():
        growths.append(f"{what}: {report.number(slope, 2)}")
    big = results["largest"]
    return (
        f"One cycle:\n\n{report.table(header, rows)}\n\nGrowth, exponent of time over gangs: {'; '.join(growths)}. "
        f"{_most(results):,} gangs: worst {found['cycle_s']:.1f} s, bar {CYCLE_BAR_S:g} s. The simulator with "
        f"{big['nodes']:,} nodes: {big['gangs']:,} gangs and {big['outages']:,} outages in {big['hours']:g} h take "
        f"{big['cpu_s']:.0f} s of CPU."
    )


def _mean(runs: list[Mapping[str, float]], key: str) -> float:
    known = [run[key] for run in runs if not math.isnan(run[key])]
    return float(np.mean(known)) if known else math.nan


QUICK = Options(
    day_nodes=32,
    day_hours=4.0,
    day_loads=(1.1,),
    day_seeds=1,
    rush_nodes=32,
    rush_loads=(1.2,),
    rush_seeds=2,
    cycle_nodes=(128,),
    cycle_gangs=(25, 50),
    largest_nodes=256,
    largest_hours=0.5,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small clusters and few seeds, nothing written")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report of the busiest day")
    arguments = parser.parse_args()
    options = QUICK if arguments.quick else Options()
    return carry_out(
        "placement_cluster",
        options,
        lambda: run(options, arguments.html),
        markdown,
        summary=summary,
        keep=not arguments.quick,
        page=report.PLACEMENT_PAGE,
    )


if __name__ == "__main__":
    sys.exit(main())
