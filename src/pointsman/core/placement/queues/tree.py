"""Queues: who is owed how much, who may have how much, and who belongs to whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.queues.amounts import Allowance, Amounts

ROOT = ""
"""The cluster itself, as parent of the topmost queues."""
DEFAULT_QUEUE = "default"
LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1_000_000
"""Of a queue that gets anything: shares count weights in thousandths."""
MOST_DEPTH = 32
"""Queues above a queue."""


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue. Gangs wait in queues without children. Raises PlacementError for what can't be."""

    name: str
    parent: str = ROOT
    quota: Allowance = field(default_factory=Allowance)
    """What it is owed: others give it back when it is asked for. No bound: all it asks for."""
    limit: Allowance = field(default_factory=Allowance)
    """What it may have at most."""
    over_quota_weight: float = 1.0
    """Its part of what nobody is owed, beside those of its siblings. 0: nothing."""
    priority: int = 0
    """What nobody is owed goes to the siblings of the highest priority first."""
    preempt_min_runtime_s: float = 0.0
    """Gangs are left alone for so long before a gang of the same queue may take their place."""
    reclaim_min_runtime_s: float = 0.0
    """The same for gangs of other queues."""

    def __post_init__(self) -> None:
        if not self.name:
            raise PlacementError("a queue has no name")
        weight = self.over_quota_weight
        if not (weight == 0 or LEAST_WEIGHT <= weight <= MOST_WEIGHT):
            raise PlacementError(
                f"queue {self.name}: over_quota_weight is {weight}; 0, or {LEAST_WEIGHT} to {MOST_WEIGHT:,} is expected"
            )
        for name in ("preempt_min_runtime_s", "reclaim_min_runtime_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlacementError(f"queue {self.name}: {name} is {value}; 0 or more is expected")


@dataclass(frozen=True)
class QueueTree:
    """All queues. Raises PlacementError for names that are there twice, parents that are not, circles, and trees that
    are too deep."""

    queues: tuple[Queue, ...]

    def __post_init__(self) -> None:
        names: set[str] = set()
        for queue in self.queues:
            if queue.name in names:
                raise PlacementError(f"queue {queue.name} is there twice; every queue needs a name of its own")
            names.add(queue.name)
        for queue in self.queues:
            if queue.parent != ROOT and queue.parent not in names:
                there = ", ".join(each.name for each in self.queues)
                raise PlacementError(
                    f"queue {queue.name}: its parent {queue.parent!r} is not there; one of {there} is expected, or none"
                )
        for queue in self.queues:
            seen = {queue.name}
            up = queue.parent
            while up != ROOT:
                if up in seen:
                    raise PlacementError(f"queue {queue.name}: its parents go in a circle ({up} is one of them twice)")
                if len(seen) > MOST_DEPTH:
                    raise PlacementError(f"queue {queue.name}: at most {MOST_DEPTH} queues above a queue are expected")
                seen.add(up)
                up = self.by_name[up].parent

    @cached_property
    def by_name(self) -> Mapping[str, Queue]:
        """Queue of a name."""
        return {queue.name: queue for queue in self.queues}

    @cached_property
    def quotas(self) -> Mapping[str, Amounts]:
        """What each queue is owed."""
        return {queue.name: queue.quota.amounts for queue in self.queues}

    @cached_property
    def children(self) -> Mapping[str, tuple[Queue, ...]]:
        """Queues below a queue or the root, in the order in which they were given."""
        found: dict[str, list[Queue]] = {ROOT: []}
        for queue in self.queues:
            found.setdefault(queue.parent, []).append(queue)
        return {name: tuple(found.get(name, ())) for name in (ROOT, *self.by_name)}

    def is_leaf(self, name: str) -> bool:
        """Whether gangs may wait there."""
        return name in self.by_name and not self.children[name]

    @cached_property
    def paths(self) -> Mapping[str, tuple[str, ...]]:
        """From each queue up to the topmost one, itself first."""
        return {name: tuple(self._up(name)) for name in self.by_name}

    def sides(self, one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The queues above two queues that are not above both, themselves included: where one's gain is the other's
        loss."""
        mine, theirs = self.paths[one], self.paths[other]
        return tuple(q for q in mine if q not in theirs), tuple(q for q in theirs if q not in mine)

    def _up(self, name: str) -> Iterator[str]:
        while name != ROOT:
            yield name
            name = self.by_name[name].parent


SINGLE_QUEUE = QueueTree((Queue(DEFAULT_QUEUE),))
"""One queue that is owed everything, for those who need no queues."""
