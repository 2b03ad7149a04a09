"""`pointsman place simulate`: a cluster over hours or days, with gangs that come and end and nodes that fail."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress, TaskID

from pointsman.app.cli.number import Number
from pointsman.app.cli.output import STDOUT, check_files, json_option, write_json
from pointsman.app.cli.piped import check_piped, numbered
from pointsman.app.cli.place_output import counted
from pointsman.app.cli.place_simulate_output import SimulateDocument, print_outcomes, seed_document
from pointsman.app.placements.report.page import Facts, cluster_report
from pointsman.app.placements.simulation.demand import MOST_GANGS, Demand, Kind, made_jobs, usual_kinds
from pointsman.app.placements.simulation.evidence import too_little
from pointsman.app.placements.simulation.misfits import misfits
from pointsman.app.placements.simulation.outages import MOST_OUTAGES, Outages, made_outages
from pointsman.app.placements.simulation.outcome import Outcome
from pointsman.app.placements.simulation.run import OnProgress, Pace, run_cluster
from pointsman.app.placements.simulation.scheduler import GangScheduler
from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.cluster import Cluster
from pointsman.core.placement.made_cluster import MadeCluster, made_cluster
from pointsman.core.placement.queues.tree import DEFAULT_QUEUE, SINGLE_QUEUE, QueueTree
from pointsman.core.placement.resources import shown
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Topology
from pointsman.edge.manifests.cluster_files import read_cluster, topology_of
from pointsman.edge.manifests.deployment_file import read_deployments
from pointsman.edge.manifests.queue_file import read_queues

_PATH = click.Path(path_type=Path)
_HOUR_S = 3_600.0


@dataclass(frozen=True)
class _Setup:
    cluster: Cluster
    topology: Topology
    demand: Demand
    outages: Outages
    tree: QueueTree
    pace: Pace


@click.command()
@click.option(
    "--cluster", "clusters", type=_PATH, multiple=True, help="A cluster file, -: stdin; else --nodes makes one."
)
@click.option("--nodes", type=click.IntRange(1, 20_000), help="A made cluster of so many nodes with 8 GPUs.")
@click.option("--topology", "levels", metavar="LABEL=NAME,…", help="Levels of closeness by node label, near to far.")
@click.option("--deployment", "deployments", type=_PATH, multiple=True, help="What comes; else a usual mix.")
@click.option("--queues", "queue_file", type=_PATH, help="Queues with quotas; who names none goes to one by chance.")
@click.option(
    "--load",
    type=Number(0, 10, "a share of all GPUs", above=True),
    default=0.9,
    show_default=True,
    help="GPUs asked for.",
)
@click.option("--hours", type=Number(0, 10_000, "hours", above=True), default=24.0, show_default=True)
@click.option(
    "--runs-h",
    type=Number(0.2, 10_000, "hours"),
    default=4.0,
    show_default=True,
    help="Mean run of a deployment, none below ten minutes.",
)
@click.option(
    "--urgent", type=Number(0, 1, "a share"), default=0.1, show_default=True, help="Share of priority 10 or more."
)
@click.option(
    "--fails-every-h",
    type=Number(0.1, 1_000_000, "hours", or_zero=True),
    default=2000.0,
    show_default=True,
    help="Mean time between failures of a node; 0: never.",
)
@click.option(
    "--repair-h",
    type=Number(0.01, 10_000, "hours"),
    default=4.0,
    show_default=True,
    help="Mean time until it is back.",
)
@click.option(
    "--startup-s",
    type=Number(0, 1_000_000, "seconds"),
    default=120.0,
    show_default=True,
    help="Until a gang computes.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the first run.")
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs.")
@click.option("--html", "html_file", type=_PATH, help="A report with plots, to FILE.")
@json_option
def simulate(
    clusters: tuple[Path, ...],
    nodes: int | None,
    levels: str | None,
    deployments: tuple[Path, ...],
    queue_file: Path | None,
    load: float,
    hours: float,
    runs_h: float,
    urgent: float,
    fails_every_h: float,
    repair_h: float,
    startup_s: float,
    seed: int,
    seeds: int,
    html_file: Path | None,
    json_file: str | None,
) -> int:
    """Run a cluster in virtual time: deployments come and end, nodes fail, each cycle places whole gangs.

    A load of 0.9 asks for nine tenths of all GPUs on average. The same seed gives the same run.
    """
    if bool(clusters) == (nodes is not None):
        raise ConfigError("place simulate needs either --cluster FILE or --nodes N")
    read = {**numbered("--cluster", clusters), "--queues": queue_file, **numbered("--deployment", deployments)}
    check_piped(read)
    check_files({"--json": json_file, "--html": html_file}, read)
    cluster, topology = _cluster(clusters, nodes, levels, seed)
    gpus = sum(node.gpus for node in cluster.nodes)
    if not gpus:
        raise ConfigError(
            "no node has GPUs, and the load is given in GPUs: --cluster with GPUs, or --nodes is expected"
        )
    tree = SINGLE_QUEUE if queue_file is None else read_queues(queue_file)
    leaves = tuple(name for name in tree.by_name if tree.is_leaf(name))
    kinds = _kinds(deployments, topology, cluster, runs_h, None if queue_file is None else tree)
    if not any(kind.gpus for kind in kinds):
        raise ConfigError("no --deployment asks for GPUs in its floors, and the load is given in GPUs")
    try:
        setup = _Setup(
            cluster,
            topology,
            Demand(kinds, load, hours, leaves, urgent),
            Outages(fails_every_h, repair_h),
            tree,
            Pace(startup_s),
        )
        _check_size(setup, gpus)
        notes = _notes(setup)
        outcomes = _runs(setup, range(seed, seed + seeds))
        little = too_little(outcomes, setup.demand, gpus)
    except PlacementError as error:
        raise ConfigError(str(error)) from None
    notes += [little] if little else []
    if json_file is not None:
        document = SimulateDocument(
            nodes=len(cluster.nodes),
            gpus=gpus,
            hours=hours,
            load=load,
            notes=notes,
            runs=[seed_document(seed + number, outcome) for number, outcome in enumerate(outcomes)],
        )
        write_json(document, json_file)
    if html_file is not None:
        more = [("Failures of a node", f"every {fails_every_h:g} h" if fails_every_h else "never")]
        more += [("Note", note) for note in notes]
        title = f"{counted(len(cluster.nodes), 'node')}, {counted(gpus, 'GPU')}"
        facts = Facts(title, len(cluster.nodes), gpus, hours, load, topology.names, more)
        _write(html_file, cluster_report(facts, {"pointsman": outcomes}))
    if json_file != STDOUT:
        failures = f"a node fails every {fails_every_h:g} h" if fails_every_h else "no node fails"
        size = f"{counted(len(cluster.nodes), 'node')}, {counted(gpus, 'GPU')}"
        click.echo(f"{size}, {hours:g} h, load {load:g}, {failures}")
        if any(outcome.gangs for outcome in outcomes):
            print_outcomes(outcomes, seed)
    if little:
        click.echo(f"note: {little}", err=True)
    return 0


def _check_size(setup: _Setup, gpus: int) -> None:
    """Raises ConfigError for runs that would not end, by the options that make them so."""
    demand = setup.demand
    gangs, outages = demand.expected(gpus), setup.outages.expected(len(setup.cluster.nodes), demand.hours)
    for count, most, what, options in (
        (gangs, MOST_GANGS, "gangs would come", "less --load or fewer --hours, larger deployments, or more --runs-h"),
        (outages, MOST_OUTAGES, "times a node would fail", "fewer --hours, or more --fails-every-h"),
    ):
        if count > most:
            raise ConfigError(
                f"about {float(f'{count:.1e}'):,.0f} {what}; at most {most:,} can be simulated: {options} would do"
            )


def _notes(setup: _Setup) -> list[str]:
    """What can be said before anything has run."""
    demand, until_s = setup.demand, setup.demand.hours * _HOUR_S
    state = ClusterState.of(setup.cluster, setup.topology)
    found = list(misfits(state, demand.kinds, setup.tree, demand.queues, time.monotonic))
    gpus, free = sum(node.gpus for node in state.nodes), int(state.gpu_free_milli[state.up].sum()) / 1000
    if free < gpus:
        found.append(
            f"{shown(free)} of {counted(gpus, 'GPU')} can be used: the others are in use, or on nodes that are down or "
            "cordoned, which stay so; --load asks for a share of all"
        )
    if setup.pace.startup_s >= until_s:
        found.append(
            f"--startup-s is {setup.pace.startup_s:,g} and the run ends after {until_s:,g} s: nothing computes"
        )
    for note in found:
        click.echo(f"note: {note}", err=True)
    return found


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {file}: can't be written: {error.strerror}") from error


def _cluster(clusters: tuple[Path, ...], nodes: int | None, levels: str | None, seed: int) -> tuple[Cluster, Topology]:
    if nodes is not None:
        if levels is not None:
            raise ConfigError("--topology goes with --cluster; a made cluster has its own levels")
        return made_cluster(MadeCluster(nodes, nodes_per_nvswitch=4), np.random.default_rng(seed))
    loaded = read_cluster(clusters, topology_of(levels) if levels is not None else None)
    for note in loaded.notes:
        click.echo(f"note: {note}", err=True)
    return loaded.cluster, loaded.topology or Topology()


def _kinds(
    files: tuple[Path, ...], topology: Topology, cluster: Cluster, runs_h: float, tree: QueueTree | None
) -> tuple[Kind, ...]:
    """The deployments given, all equally often, each in the queue that it names; else a usual mix for the largest
    nodes."""
    wanted = [each for file in files for each in read_deployments(file)]
    for each in wanted:
        each.check_levels(topology)
        if tree is not None and each.gang.queue != DEFAULT_QUEUE:
            each.check_queue(tree)
    if wanted:
        in_queue = (tree is not None and tree.is_leaf(each.gang.queue) for each in wanted)
        return tuple(
            Kind(each.gang, 1.0, runs_h, each.gang.queue if named else None)
            for each, named in zip(wanted, in_queue, strict=True)
        )
    most = max(node.gpus for node in cluster.nodes)
    return tuple(replace(kind, runs_h=runs_h) for kind in usual_kinds(topology, most))


def _runs(setup: _Setup, seeds: range) -> list[Outcome]:
    """One after the other, with a bar on a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("simulating", total=float(len(seeds)))
        outcomes = []
        for number, seed in enumerate(seeds):
            outcomes.append(_run(setup, seed, partial(_advance, bar, task, number)))
        return outcomes


def _advance(bar: Progress, task: TaskID, done: int, part: float) -> None:
    bar.update(task, completed=done + part)


def _run(setup: _Setup, seed: int, on_progress: OnProgress) -> Outcome:
    """One run. What comes and what fails are drawn apart: another load has the same failures."""
    until_s = setup.demand.hours * _HOUR_S
    gpus = sum(node.gpus for node in setup.cluster.nodes)
    jobs = made_jobs(setup.demand, gpus, np.random.default_rng([seed, 1]))
    names = [node.name for node in setup.cluster.nodes if node.ready]
    outages = made_outages(setup.outages, names, until_s, np.random.default_rng([seed, 2]))
    scheduler = GangScheduler(setup.tree)
    return run_cluster(
        setup.cluster,
        setup.topology,
        jobs,
        outages,
        scheduler,
        until_s,
        pace=setup.pace,
        on_progress=on_progress,
    )
