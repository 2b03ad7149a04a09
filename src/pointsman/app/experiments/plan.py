"""The plan of an experiment: which policies run on which fleets, how often."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pointsman.app.experiments.comparison import Metrics
from pointsman.app.experiments.curves import Curves
from pointsman.app.experiments.slo import Slo
from pointsman.app.experiments.workload import Workload
from pointsman.app.simulate.setup import Setup
from pointsman.core.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy in an experiment. Each run gets a copy of its own, so one that remembers begins anew."""

    label: str
    """Its name; the second of the same name is `NAME 2`. Chance is drawn by label, workload and noise by seed."""
    policy: Policy


def entries(policies: Iterable[Policy]) -> tuple[Entry, ...]:
    """Label policies; one may be there several times, to see what chance does."""
    count: dict[str, int] = {}
    found = []
    for policy in policies:
        count[policy.name] = count.get(policy.name, 0) + 1
        times = count[policy.name]
        found.append(Entry(policy.name if times == 1 else f"{policy.name} {times}", policy))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Point:
    """One fleet under one load; a sweep has several."""

    setup: Setup
    rate: float = 1.0
    """How many times as fast as the workload."""
    clients: int | None = None
    """Closed loop with so many; None: requests come when the trace says."""
    name: str = ""
    """For example `workers=8`; empty when there is only one."""
    value: float = 0.0
    """Its place on the axis of the sweep."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation to make: numbers of point, entry and seed."""

    point: int
    entry: int
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """What one simulation gave."""

    run: Run
    metrics: Metrics
    curves: Curves


@dataclass(frozen=True, slots=True)
class Experiment:
    """Everything that runs of it need; goes into other processes."""

    workload: Workload
    entries: tuple[Entry, ...]
    points: tuple[Point, ...]
    seeds: int = 5
    slo: Slo | None = None

    def runs(self, points: Sequence[int] | None = None) -> Iterator[Run]:
        """All runs of those points (None: of all); those with the same traffic come after each other."""
        for point in range(len(self.points)) if points is None else points:
            for seed in range(self.seeds):
                for entry in range(len(self.entries)):
                    yield Run(point, entry, seed)
