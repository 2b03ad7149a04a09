"""Demand: which gangs come, how often, and how long they run; drawn from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.gang import Gang, Near, RoleGroup
from pointsman.core.placement.resources import WHOLE_GPU_MILLI, Resources
from pointsman.core.placement.topology import NODE_LEVEL, Topology

HOUR_S = 3_600.0
_SHORTEST_S = 600.0
_URGENT = 10
MOST_GANGS = 1_000_000
"""That one run is made for: each is looked at many times."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of deployment. `gang` is its pattern: name, queue and time of submission are given later."""

    gang: Gang
    weight: float
    """How many of them come, beside other kinds."""
    runs_h: float = 4.0
    """Mean time it runs, ten minutes at least: those, and on top what is drawn from an exponential distribution."""
    queue: str | None = None
    """Where all of them wait; None: in any queue, by chance."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise PlacementError(f"kind {self.gang.name}: weight is {self.weight}; 0 or more is expected")
        if not _SHORTEST_S / HOUR_S <= self.runs_h < math.inf:
            raise PlacementError(f"kind {self.gang.name}: runs_h is {self.runs_h}; ten minutes or more are expected")

    @property
    def gpus(self) -> float:
        """GPUs of its floors."""
        return self.gang.floor.gpus


@dataclass(frozen=True, slots=True)
class Demand:
    """What comes. Raises PlacementError for what can't be."""

    kinds: tuple[Kind, ...]
    load: float = 0.9
    """GPUs that would be held on average if nothing ever had to wait, as a share of the cluster's."""
    hours: float = 24.0
    """Gangs come for so long."""
    queues: tuple[str, ...] = ("default",)
    """Gangs whose kind names none go to one of them by chance."""
    urgent_share: float = 0.1
    """Gangs of priority 10, or their own if that is higher; the others have their own."""

    def __post_init__(self) -> None:
        if not self.kinds or not any(kind.weight > 0 for kind in self.kinds):
            raise PlacementError("no kind of gang would ever come; at least one with a weight above 0 is expected")
        for name in ("load", "hours"):
            if not 0 < getattr(self, name) < math.inf:
                raise PlacementError(f"{name} is {getattr(self, name)}; a number above 0 is expected")
        if not 0 <= self.urgent_share <= 1:
            raise PlacementError(f"urgent_share is {self.urgent_share}; 0 to 1 is expected")
        if not self.queues:
            raise PlacementError("gangs need a queue to wait in; at least one is expected")

    def gangs_per_hour(self, cluster_gpus: int) -> float:
        """So many gangs come that the load is what it should be."""
        total = sum(kind.weight for kind in self.kinds)
        gpu_hours = sum(kind.weight / total * kind.gpus * kind.runs_h for kind in self.kinds)
        if not gpu_hours:
            raise PlacementError("no kind of gang asks for GPUs in its floors, so the load can't be given in GPUs")
        if cluster_gpus < 1:
            raise PlacementError("the cluster has no GPUs, so the load can't be given in GPUs")
        return self.load * cluster_gpus / gpu_hours

    def expected(self, cluster_gpus: int) -> float:
        """So many gangs come on average."""
        return self.gangs_per_hour(cluster_gpus) * self.hours


@dataclass(frozen=True, slots=True)
class Job:
    """A gang that comes at `gang.submitted_at_s` and runs for `runs_s` once it is whole and has started."""

    gang: Gang
    runs_s: float


def made_jobs(demand: Demand, cluster_gpus: int, rng: np.random.Generator) -> tuple[Job, ...]:
    """Gangs in the order in which they come: a Poisson process."""
    mean_s = HOUR_S / demand.gangs_per_hour(cluster_gpus)
    weights = np.array([kind.weight for kind in demand.kinds])
    jobs: list[Job] = []
    now_s = float(rng.exponential(mean_s))
    while now_s < demand.hours * HOUR_S:
        kind = demand.kinds[int(rng.choice(len(weights), p=weights / weights.sum()))]
        by_chance = demand.queues[int(rng.integers(len(demand.queues)))]
        is_urgent = rng.random() < demand.urgent_share
        gang = replace(
            kind.gang,
            name=f"{kind.gang.name}-{len(jobs) + 1}",
            queue=kind.queue or by_chance,
            priority=max(_URGENT, kind.gang.priority) if is_urgent else kind.gang.priority,
            submitted_at_s=now_s,
        )
        jobs.append(Job(gang, _SHORTEST_S + float(rng.exponential(kind.runs_h * HOUR_S - _SHORTEST_S))))
        now_s += float(rng.exponential(mean_s))
    return tuple(jobs)


def usual_kinds(
    topology: Topology, node_gpus: int, min_runtime_s: float = 1_800.0, *, elastic: bool = True
) -> tuple[Kind, ...]:
    """A mix of deployments, prefill and decode apart, from a few GPUs to several racks; sizes go by the GPUs of a node.
    `elastic` False: no replicas above the floors.

    The level `rack` is what closeness is about where there is one, else the farthest but one.
    """
    close = close_level(topology)
    whole, half, part = node_gpus, max(1, node_gpus // 2), max(1, node_gpus // 8)

    def pair(name: str, prefill: tuple[int, int], decode: tuple[int, int], most: int, required: bool) -> Gang:
        groups = (
            _role("prefill", prefill[0], prefill[0], prefill[1], stage="prefill"),
            _role("decode", decode[0], most if elastic else decode[0], decode[1], stage="decode"),
            RoleGroup("front end", 1, 1, Resources(0, 4_000, 8 * 2**30)),
        )
        near = (Near(("prefill", "decode"), close, required),) if close else ()
        return Gang(name, groups, near, min_runtime_s=min_runtime_s)

    wide = RoleGroup(
        "decode",
        2,
        3 if elastic else 2,
        _resources(whole),
        pods_per_replica=4,
        stage="decode",
        replica_required=close,
    )
    return (
        Kind(pair("chat-s", (2, part), (2, part), 4, False), 0.35),
        Kind(pair("chat-m", (2, half), (3, half), 4, True), 0.3),
        Kind(pair("chat-l", (2, whole), (4, whole), 6, False), 0.15),
        Kind(
            Gang(
                "wide",
                (_role("prefill", 2, 2, whole, stage="prefill"), wide),
                (Near(("prefill", "decode"), close, False),) if close else (),
                min_runtime_s=min_runtime_s,
            ),
            0.05,
        ),
        Kind(Gang("single", (_role("worker", 1, 1, part),), min_runtime_s=min_runtime_s), 0.15),
    )


def close_level(topology: Topology) -> str | None:
    """The level that closeness is measured at; None: the topology has none."""
    names = [name for name in topology.names if name != NODE_LEVEL]
    if "rack" in names:
        return "rack"
    return names[max(0, len(names) - 2)] if names else None


def _resources(gpus: int) -> Resources:
    return Resources(gpus * WHOLE_GPU_MILLI, gpus * 4_000, gpus * 32 * 2**30)


def _role(name: str, floor: int, most: int, gpus: int, stage: str = "") -> RoleGroup:
    return RoleGroup(name, floor, most, _resources(gpus), stage=stage)


def offered(jobs: Sequence[Job]) -> float:
    """GPU hours that the floors of these gangs ask for."""
    return sum(job.gang.floor.gpus * job.runs_s for job in jobs) / HOUR_S
