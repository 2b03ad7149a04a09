"""Placement: where each pod of a gang goes and how good that is; Unplaced: why it goes nowhere."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.resources import NOTHING, Resources


@dataclass(frozen=True, slots=True)
class PodPlace:
    """One pod. `devices` are the GPUs of the node that the plan counts on; a shared one is there with its part."""

    role: str
    replica: int
    pod: int
    """Position in its replica; 0 is the leader."""
    node: str
    devices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Optimal:
    """No placement of the floors has less spread: proved."""

    def __str__(self) -> str:
        return "optimal"


@dataclass(frozen=True, slots=True)
class Gap:
    """The spread is at most `cost` above the least possible; time ran out before more could be proved."""

    cost: int

    def __str__(self) -> str:
        return f"gap <= {self.cost}"


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    """The time ran out before anything could be proved about how good it is."""

    def __str__(self) -> str:
        return "budget spent"


Statement = Optimal | Gap | BudgetSpent


@dataclass(frozen=True, slots=True)
class LevelSpread:
    """Domains of a level that a placement touches. Nodes that have no domain there count as one each."""

    level: str
    domains: int


@dataclass(frozen=True)
class Placement:
    """A gang on nodes: every replica has all its pods, every role at least its floor (after losses: see `is_whole`)."""

    gang: Gang
    pods: tuple[PodPlace, ...]
    statement: Statement = BudgetSpent()
    cost: int = 0
    """Spread of the floors in the topology's costs plus what preferences that are not met cost; 0: all in one domain of
    each level."""
    bound: int = 0
    """No placement of the floors costs less."""
    spread: tuple[LevelSpread, ...] = ()
    """Of all pods, near to far."""
    elapsed_s: float = 0.0
    growth_cut_short: bool = False
    """Time ran out before it was known whether more elastic replicas fit."""

    @cached_property
    def replicas(self) -> dict[str, int]:
        """Replicas that are there, by role."""
        found: dict[str, set[int]] = {group.name: set() for group in self.gang.groups}
        for pod in self.pods:
            found[pod.role].add(pod.replica)
        return {role: len(replicas) for role, replicas in found.items()}

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes it is on."""
        return frozenset(pod.node for pod in self.pods)

    @property
    def is_whole(self) -> bool:
        """Whether every role has its floor."""
        return all(self.replicas[group.name] >= group.min_replicas for group in self.gang.groups)

    @property
    def is_full(self) -> bool:
        """Whether every role has all it may have."""
        return all(self.replicas[group.name] >= group.max_replicas for group in self.gang.groups)

    @cached_property
    def requests(self) -> Resources:
        """What its pods hold together."""
        pods = Counter(pod.role for pod in self.pods)
        total = NOTHING
        for group in self.gang.groups:
            total = total + group.requests.times(pods[group.name])
        return total

    def elastic(self, group: RoleGroup) -> tuple[int, ...]:
        """Replicas of a role above its floor, those that are given up first in front."""
        if self.replicas[group.name] <= group.min_replicas:
            return ()
        numbers = sorted({pod.replica for pod in self.pods if pod.role == group.name})
        return tuple(reversed(numbers[group.min_replicas :]))

    @cached_property
    def above_floors(self) -> tuple[tuple[str, int], ...]:
        """Role and number of every replica above the floors, those that are given up first in front: roles in step,
        the one with most of them gives first."""
        by_role = {group.name: list(self.elastic(group)) for group in self.gang.groups}
        found = []
        while any(by_role.values()):
            role = max(by_role, key=lambda name: len(by_role[name]))
            found.append((role, by_role[role].pop(0)))
        return tuple(found)

    def without(self, replicas: Collection[tuple[str, int]]) -> Placement:
        """The same less some replicas, each with its role."""
        return replace(self, pods=tuple(pod for pod in self.pods if (pod.role, pod.replica) not in replicas))

    def without_nodes(self, nodes: Collection[str]) -> Placement:
        """What is left when nodes are lost: a replica with a pod on one of them is gone whole."""
        return self.without({(pod.role, pod.replica) for pod in self.pods if pod.node in nodes})


class Reason(enum.Enum):
    """Why a gang is not placed."""

    INSUFFICIENT_CAPACITY = "InsufficientCapacity"
    """Without any constraint of closeness it would not fit either."""
    TOPOLOGY_UNSATISFIED = "TopologyUnsatisfied"
    """It would fit, but not as close together as is required."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """Its queue may not have so much."""
    NODE_UNFIT = "NodeUnfit"
    """No node would take a pod of a role, even if it were empty."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What of a role does not fit."""

    role: str
    fits_replicas: int
    wanted_replicas: int
    lacks: Resources
    """What the replicas that do not fit ask for."""


@dataclass(frozen=True, slots=True)
class TightestDomain:
    """The domain that comes nearest to holding what has to be in one."""

    level: str
    domain: str
    missing: tuple[Missing, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A change that was tried and makes the gang fit."""

    kind: str
    """`fewer_replicas`, `looser_level`, `move_gang` (it fits elsewhere), `shrink_gang` (its floors
    do), `evict_gang` (they don't), or `preemptible` (others may evict this one)."""
    text: str
    replicas: tuple[tuple[str, int], ...] = ()
    """fewer_replicas: role and the floor that fits."""
    constraint: str = ""
    level: str | None = None
    """looser_level: the level that will do, None: only without the constraint."""
    gang: str = ""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Why a gang goes nowhere."""

    gang: Gang
    reason: Reason
    text: str
    """One or two sentences for people."""
    constraint: str = ""
    """The field that can't be met, where it is one."""
    tightest: TightestDomain | None = None
    missing: tuple[Missing, ...] = ()
    unfit: tuple[tuple[str, str, int], ...] = ()
    """Role, why nodes won't do, how many of them; where some do, only of those that are large enough."""
    changes: tuple[Change, ...] = ()
    """Smallest first."""
    proved: bool = True
    """False: time ran out before all was tried; more of it may find a place."""
    elapsed_s: float = 0.0
