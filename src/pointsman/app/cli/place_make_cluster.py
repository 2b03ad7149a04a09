"""`pointsman place make-cluster`: a cluster file to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import click
import numpy as np

from pointsman.app.cli.number import Number
from pointsman.app.cli.output import STDOUT
from pointsman.app.cli.place_output import counted
from pointsman.core.model.errors import ConfigError, PlacementError
from pointsman.core.placement.made_cluster import MOST_WEIGHT, MadeCluster, made_cluster
from pointsman.edge.manifests.cluster_file import cluster_text
from pointsman.edge.manifests.quantity import Cpu, Memory

A = TypeVar("A", Cpu, Memory)
_SHARE = Number(0, 1, "a share")
_COUNT = click.IntRange(1, 100_000)


@click.command("make-cluster")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(1, 100_000), required=True, help="How many.")
@click.option("--gpus", type=click.IntRange(1, 64), default=8, show_default=True, help="GPUs of a node.")
@click.option("--kinds", default="H100", show_default=True, metavar="KIND=WEIGHT,…", help="GPU kinds; a rack has one.")
@click.option("--nodes-per-rack", type=_COUNT, default=8, show_default=True)
@click.option("--racks-per-zone", type=_COUNT, default=8, show_default=True)
@click.option(
    "--nodes-per-nvswitch", type=click.IntRange(0, 100_000), default=0, show_default=True, help="0: no such level."
)
@click.option("--cpu-per-gpu", default="12", show_default=True, help="CPUs for pods, for each GPU.")
@click.option("--memory-per-gpu", default="128Gi", show_default=True, help="Memory for pods, for each GPU.")
@click.option("--used", type=_SHARE, default=0.0, show_default=True, help="Share of GPUs that pods of others hold.")
@click.option("--cordoned", type=_SHARE, default=0.0, show_default=True, help="Share of nodes without new pods.")
@click.option("--down", type=_SHARE, default=0.0, show_default=True, help="Share of nodes that are not ready.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="For what is drawn.")
def make_cluster(
    out: Path,
    nodes: int,
    gpus: int,
    kinds: str,
    nodes_per_rack: int,
    racks_per_zone: int,
    nodes_per_nvswitch: int,
    cpu_per_gpu: str,
    memory_per_gpu: str,
    used: float,
    cordoned: float,
    down: float,
    seed: int,
) -> int:
    """Write a cluster file (`-`: to stdout): nodes in NVSwitch domains, racks and zones, partly used.

    The same seed makes the same.
    """
    try:
        settings = MadeCluster(
            nodes=nodes,
            gpus=gpus,
            kinds=_kinds(kinds),
            nodes_per_nvswitch=nodes_per_nvswitch,
            nodes_per_rack=nodes_per_rack,
            racks_per_zone=racks_per_zone,
            cpu_milli_per_gpu=_amount("--cpu-per-gpu", cpu_per_gpu, Cpu).milli,
            memory_bytes_per_gpu=_amount("--memory-per-gpu", memory_per_gpu, Memory).bytes,
            used_share=used,
            cordoned_share=cordoned,
            down_share=down,
        )
        cluster, topology = made_cluster(settings, np.random.default_rng(seed))
    except PlacementError as error:
        raise ConfigError(str(error)) from None
    text, is_piped = cluster_text(cluster, topology), str(out) == STDOUT
    if is_piped:
        click.echo(text, nl=False)
    else:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{out}: can't be written: {error.strerror}") from error
    racks = -(-nodes // nodes_per_rack)
    click.echo(
        f"{out}: {counted(nodes, 'node')}, {counted(nodes * gpus, 'GPU')}, {counted(racks, 'rack')}, "
        f"{counted(-(-racks // racks_per_zone), 'zone')}, {counted(len(cluster.pods), 'pod')} of others",
        err=is_piped,
    )
    return 0


def _amount(option: str, text: str, kind: type[A]) -> A:
    try:
        return kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text}: expected {error}") from None


def _kinds(text: str) -> tuple[tuple[str, float], ...]:
    found = []
    for part in text.split(","):
        name, equals, weight = part.strip().partition("=")
        try:
            number = float(weight) if equals else 1.0
        except ValueError:
            number = 0.0
        if not name or not 0 < number <= MOST_WEIGHT:
            raise ConfigError(
                f"--kinds {text}: {part!r}: expected KIND=WEIGHT, such as H100=3,A100=1, each weight above 0, "
                f"at most {MOST_WEIGHT:,}"
            )
        found.append((name, number))
    return tuple(found)
