"""Made clusters: nodes in NVSwitch domains, racks and zones, of several kinds, partly used, some down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.resources import WHOLE_GPU_MILLI, Resources
from pointsman.core.placement.topology import Level, Topology

NVSWITCH = Level("nvswitch", "nvidia.com/nvswitch")
RACK = Level("rack", "topology.kubernetes.io/rack")
ZONE = Level("zone", "topology.kubernetes.io/zone")
MOST_OF_A_NODE = 2**60
"""Milli-CPUs or bytes; files of clusters take no more."""
MOST_WEIGHT = 1_000_000
_POD_GPUS = (1, 2, 4, 8)
_POD_WEIGHTS = np.array([0.5, 0.2, 0.15, 0.15])
"""Most pods of others are small; so is what they leave on a node."""


@dataclass(frozen=True, slots=True)
class MadeCluster:
    """What a cluster should be like. Raises PlacementError for what can't be."""

    nodes: int
    gpus: int = 8
    """Of a node."""
    kinds: tuple[tuple[str, float], ...] = (("H100", 1.0),)
    """Kinds of GPU and their weights; a rack has one kind."""
    nodes_per_nvswitch: int = 0
    """0: no such level."""
    nodes_per_rack: int = 8
    racks_per_zone: int = 8
    cpu_milli_per_gpu: int = 12_000
    memory_bytes_per_gpu: int = 128 * 2**30
    used_share: float = 0.0
    """Of all GPUs, held by pods of others of 1 to 8 GPUs on random nodes."""
    cordoned_share: float = 0.0
    """Of the nodes."""
    down_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus", "nodes_per_rack", "racks_per_zone"):
            if getattr(self, name) < 1:
                raise PlacementError(f"{name} is {getattr(self, name)}; 1 or more is expected")
        for name in ("used_share", "cordoned_share", "down_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise PlacementError(f"{name} is {getattr(self, name)}; a share from 0 to 1 is expected")
        if not self.kinds or any(not kind or not 0 < weight <= MOST_WEIGHT for kind, weight in self.kinds):
            raise PlacementError(f"kinds are names of GPUs, each with a weight above 0, at most {MOST_WEIGHT:,}")
        if len({kind for kind, _ in self.kinds}) < len(self.kinds):
            raise PlacementError("a kind of GPU is there twice; each is expected once, with its weight")
        for name in ("cpu_milli_per_gpu", "memory_bytes_per_gpu"):
            if not 0 <= self.gpus * getattr(self, name) <= MOST_OF_A_NODE:
                raise PlacementError(
                    f"{name} is {getattr(self, name)}; with {self.gpus} GPUs a node would have more than any machine"
                )
        if self.nodes_per_nvswitch and self.nodes_per_rack % self.nodes_per_nvswitch:
            raise PlacementError(
                f"nodes_per_nvswitch is {self.nodes_per_nvswitch}; a divisor of {self.nodes_per_rack}, the nodes of a "
                "rack, is expected, for no such domain reaches over racks"
            )


def made_cluster(settings: MadeCluster, rng: np.random.Generator) -> tuple[Cluster, Topology]:
    """A cluster and its levels, the same for the same settings and random numbers."""
    nodes = tuple(_nodes(settings, rng))
    topology = Topology((NVSWITCH, RACK, ZONE) if settings.nodes_per_nvswitch else (RACK, ZONE))
    return Cluster(nodes, tuple(_pods(settings, nodes, rng))), topology


def _nodes(settings: MadeCluster, rng: np.random.Generator) -> Iterator[Node]:
    count, width = settings.nodes, len(str(settings.nodes))
    racks = -(-count // settings.nodes_per_rack)
    names = [kind for kind, _ in settings.kinds]
    weights = np.array([weight for _, weight in settings.kinds])
    kind_of_rack = rng.choice(len(names), racks, p=weights / weights.sum())
    cordoned = _some(count, settings.cordoned_share, rng)
    down = _some(count, settings.down_share, rng)
    for number in range(count):
        rack = number // settings.nodes_per_rack
        labels = {RACK.label: f"rack-{rack + 1}", ZONE.label: f"zone-{rack // settings.racks_per_zone + 1}"}
        if settings.nodes_per_nvswitch:
            labels = {NVSWITCH.label: f"nvswitch-{number // settings.nodes_per_nvswitch + 1}", **labels}
        yield Node(
            name=f"node-{number + 1:0{width}}",
            gpus=settings.gpus,
            gpu_kind=names[kind_of_rack[rack]],
            cpu_milli=settings.gpus * settings.cpu_milli_per_gpu,
            memory_bytes=settings.gpus * settings.memory_bytes_per_gpu,
            labels=labels,
            cordoned=number in cordoned,
            ready=number not in down,
        )


def _pods(settings: MadeCluster, nodes: tuple[Node, ...], rng: np.random.Generator) -> Iterator[ForeignPod]:
    free = np.full(len(nodes), settings.gpus)
    open_rows = list(range(len(nodes)))
    left = round(settings.used_share * settings.gpus * len(nodes))
    number = 0
    while left > 0:
        at = int(rng.integers(len(open_rows)))
        row = open_rows[at]
        gpus = min(int(rng.choice(_POD_GPUS, p=_POD_WEIGHTS)), int(free[row]), left)
        free[row] -= gpus
        left -= gpus
        number += 1
        if not free[row]:
            open_rows[at] = open_rows[-1]
            open_rows.pop()
        requests = Resources(
            gpus * WHOLE_GPU_MILLI, gpus * settings.cpu_milli_per_gpu, gpus * settings.memory_bytes_per_gpu
        )
        yield ForeignPod(f"other-{number}", "default", nodes[row].name, requests)


def _some(count: int, share: float, rng: np.random.Generator) -> set[int]:
    return set(rng.choice(count, round(count * share), replace=False).tolist())
