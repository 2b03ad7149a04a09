"""`pointsman place`: where the replicas of deployments go on a cluster, whole and close together, or why not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from pointsman.app.cli.output import STDOUT, check_files, json_option, write_json
from pointsman.app.cli.piped import check_piped, numbered
from pointsman.app.cli.place_document import document_of
from pointsman.app.cli.place_make_cluster import make_cluster
from pointsman.app.cli.place_output import print_planned
from pointsman.app.cli.place_simulate import simulate
from pointsman.app.placements.in_order import place_in_order
from pointsman.app.placements.picture import picture_of
from pointsman.app.placements.svg import svg_of
from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Topology
from pointsman.edge.configuration.duration import Duration
from pointsman.edge.manifests.cluster_files import read_cluster, topology_of
from pointsman.edge.manifests.deployment_file import Deployment, read_deployments
from pointsman.edge.manifests.queue_file import read_queues

EXIT_NOT_PLACED = 3
"""At least one deployment has no place: no error, but no yes either."""
_PATH = click.Path(path_type=Path)


@click.group(invoke_without_command=True)
@click.option(
    "--cluster",
    "clusters",
    type=_PATH,
    multiple=True,
    help="A cluster file, or what `kubectl get nodes,pods -A -o json` prints; -: stdin.",
)
@click.option("--deployment", "deployments", type=_PATH, multiple=True, help="A deployment file; several by priority.")
@click.option("--topology", "levels", metavar="LABEL=NAME,…", help="Levels of closeness by node label, near to far.")
@click.option("--queues", "queue_file", type=_PATH, help="Quotas and limits of the queues that deployments name.")
@click.option("--budget", default="2s", show_default=True, help="Time for each deployment.")
@click.option("--svg", "svg_file", type=_PATH, help="A picture of the racks, to FILE.")
@json_option
@click.pass_context
def place(
    ctx: click.Context,
    clusters: tuple[Path, ...],
    deployments: tuple[Path, ...],
    levels: str | None,
    queue_file: Path | None,
    budget: str,
    svg_file: Path | None,
    json_file: str | None,
) -> int | None:
    """Place deployments on a cluster, each whole or not at all, as close together as they ask (docs/placement.md).

    Ends with 0 when all have a place, 3 when one has none, 2 for an error. Nothing is changed anywhere: it is a plan.
    """
    if ctx.invoked_subcommand is not None:
        if clusters or deployments or levels or queue_file or svg_file or json_file:
            raise ConfigError(f"place {ctx.invoked_subcommand} has options of its own; write them after its name")
        return None
    if not clusters or not deployments:
        missing = "--cluster" if not clusters else "--deployment"
        raise ConfigError(f"place needs {missing} FILE; `pointsman place make-cluster` makes a cluster to try")
    read = {**numbered("--cluster", clusters), "--queues": queue_file, **numbered("--deployment", deployments)}
    check_piped(read)
    check_files({"--json": json_file, "--svg": svg_file}, read)
    try:
        budget_s = Duration.parse(budget).s
    except ValueError as error:
        raise ConfigError(f"--budget {budget}: expected {error}") from None
    tree = None if queue_file is None else read_queues(queue_file)
    loaded = read_cluster(clusters, topology_of(levels) if levels is not None else None)
    topology = loaded.topology or Topology()
    wanted = [each for file in deployments for each in read_deployments(file)]
    for each in wanted:
        each.check_levels(topology)
        if tree is not None:
            each.check_queue(tree)
    _check_names(wanted)
    state = ClusterState.of(loaded.cluster, topology)
    for note in (*loaded.notes, *_overcommitted(state)):
        click.echo(f"note: {note}", err=True)
    try:
        gangs = [each.gang for each in wanted]
        planned = place_in_order(state, gangs, budget_s=budget_s, clock_s=time.monotonic, tree=tree)
    except PlacementError as error:
        raise ConfigError(str(error)) from None
    models = {each.gang.name: each.model for each in wanted}
    if svg_file is not None:
        _write(svg_file, svg_of(picture_of(planned.after, planned.placed), _title(planned.placed, wanted)))
    if json_file is not None:
        write_json(document_of(planned, models), json_file)
    if json_file != STDOUT:
        print_planned(planned, models)
    return 0 if len(planned.placed) == len(planned.answers) else EXIT_NOT_PLACED


def _check_names(wanted: list[Deployment]) -> None:
    seen: dict[str, Deployment] = {}
    for each in wanted:
        first = seen.setdefault(each.gang.name, each)
        if first is not each:
            raise ConfigError(
                f"{each.place}: name: {each.gang.name} is the name of the deployment at {first.place} too; "
                "each needs one of its own"
            )


def _overcommitted(state: ClusterState) -> list[str]:
    if not state.overcommitted:
        return []
    names = ", ".join(state.overcommitted[:3]) + (", …" if len(state.overcommitted) > 3 else "")
    count = len(state.overcommitted)
    where = f"{count} node{'s' * (count > 1)} ({names})"
    return [f"pods ask for more than there is on {where}: nothing of that is free"]


def _title(placed: Any, wanted: list[Deployment]) -> str:
    names = ", ".join(placement.gang.name for placement in placed) or "nothing"
    missing = len(wanted) - len(placed)
    return f"Placed: {names}" + (f"; {missing} without a place" if missing else "")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--svg {file}: can't be written: {error.strerror}") from error


place.add_command(make_cluster)
place.add_command(simulate)
