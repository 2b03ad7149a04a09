"""Books: all that a cycle knows while it plans. Every change gives new books, so a transaction is rolled back by
forgetting them, and committed by going on with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.attempt import possible
from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Why
from pointsman.core.placement.queues.amounts import NONE, Amounts, amounts_of, minus, plus
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.queues.usage import Usage, held_by
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError

Replicas = Mapping[str, Collection[tuple[str, int]] | None]
"""By gang, roles and numbers of replicas; None: all of them."""


@dataclass(frozen=True)
class Settings:
    """How a cycle works. Raises PlacementError for what can't be."""

    cycle_budget_s: float = 10.0
    """After so long gangs whose turn has not come wait for the next cycle."""
    gang_budget_s: float = 2.0
    """For one search of the solver."""
    consolidate: bool = True
    """Gangs are moved to make room, if all of them find another place."""
    most_moved: int = 8
    """Gangs that are moved for one."""
    move_pause_s: float = 600.0
    """A gang that was placed or moved is not moved for so long."""
    reserve_after_s: float = 600.0
    """The oldest gang that has waited so long for capacity gets nodes set aside (see `reservation`)."""
    reserve_for_s: float = 3_600.0
    """If nodes set aside did not become free for so long, it is the next gang's turn."""

    def __post_init__(self) -> None:
        for name in ("cycle_budget_s", "gang_budget_s", "move_pause_s", "reserve_after_s", "reserve_for_s"):
            if not getattr(self, name) >= 0:
                raise PlacementError(f"{name} is {getattr(self, name)}; 0 or more is expected")
        if self.most_moved < 1:
            raise PlacementError(f"most_moved is {self.most_moved}; 1 or more is expected")


@dataclass(frozen=True)
class Books:
    """State, usage and what was decided so far."""

    state: ClusterState
    usage: Usage
    tree: QueueTree
    shares: Mapping[str, Amounts]
    since_s: Mapping[str, float]
    """When gangs that run were placed or moved last; those placed in this cycle are not in here."""
    now_s: float
    settings: Settings
    solver: TimedSolver
    is_late: Callable[[], bool]
    """Whether the cycle's time is spent."""
    closed: Bools | None = None
    """Nodes that are set aside for another gang."""
    why: Mapping[str, Why] = field(default_factory=lambda: MappingProxyType({}))

    def try_place(self, gang: Gang, kept: Placement | None = None, *, elastic: bool = False) -> Placement | Unplaced:
        """Where it goes, away from nodes that are set aside; or why nowhere."""
        return self.solver.place(self._open_state(), gang, kept, elastic)

    def fits(self, gang: Gang, kept: Placement | None = None) -> bool:
        """Whether its floors fit, away from nodes that are set aside; quicker than `try_place`. What is kept must be
        exactly what is held of it."""
        if not self.is_enough_free(gang, kept):
            return False
        return self.solver.fits(self._open_state(), gang, kept)

    def is_enough_free(self, gang: Gang, kept: Placement | None = None) -> bool:
        """Whether all nodes together have enough for its floors: what others hold need not change then."""
        return max(self.lacking(gang, kept)) <= 0

    def lacking(self, gang: Gang, kept: Placement | None = None) -> Amounts:
        """What its floors ask for beyond what is free on all nodes together; below 0 where more is free."""
        asked = amounts_of(gang.floor)
        return minus(minus(asked, held_by(kept)) if kept is not None else asked, self._free)

    @cached_property
    def _free(self) -> Amounts:
        state = self.state
        usable = state.up if self.closed is None else state.up & ~self.closed
        gpu, cpu, memory = (
            int(np.sum(amount[usable]))
            for amount in (state.gpu_free_milli, state.cpu_free_milli, state.memory_free_bytes)
        )
        return gpu, cpu, memory

    def without(self, replicas: Replicas) -> Books:
        """With many gangs less some of their replicas. Nothing is said about why."""
        return replace(self, state=self.state.without(replicas), usage=self.usage_without(replicas))

    def usage_without(self, replicas: Replicas) -> Usage:
        """What queues hold then."""
        placements = ((self.state.placements[name], some) for name, some in replicas.items())
        return self.usage.lessened((placement.gang, _part(placement, some)) for placement, some in placements)

    def placed(self, placement: Placement, why: Why) -> Books:
        """With a gang that held nothing."""
        return replace(
            self,
            state=self.state.hold(placement),
            usage=self.usage.changed(None, placement),
            why={**self.why, placement.gang.name: why},
        )

    def exchanged(self, placement: Placement, why: Why) -> Books:
        """With a gang that holds this instead; without pods it holds nothing any more."""
        name = placement.gang.name
        return replace(
            self,
            state=self.state.exchange(placement),
            usage=self.usage.changed(self.state.placements[name], placement),
            why={**self.why, name: why},
        )

    def released(self, name: str, why: Why) -> Books:
        """Without a gang."""
        return replace(
            self,
            state=self.state.release(name),
            usage=self.usage.changed(self.state.placements[name], None),
            why={**self.why, name: why},
        )

    def runs_for_s(self, name: str) -> float | None:
        """How long a gang has run; None: it was placed in this cycle, and stays."""
        since = self.since_s.get(name)
        return None if since is None else self.now_s - since

    def _open_state(self) -> ClusterState:
        if self.closed is None:
            return self.state
        return replace(self.state, up=self.state.up & ~self.closed)


def _part(placement: Placement, replicas: Collection[tuple[str, int]] | None) -> Amounts:
    """What some replicas of a gang hold, or all."""
    if replicas is None:
        return held_by(placement)
    found = NONE
    for role, count in Counter(role for role, _ in replicas).items():
        group = placement.gang.group(role)
        found = plus(found, amounts_of(group.requests.times(group.pods_per_replica * count)))
    return found


@dataclass(frozen=True)
class TimedSolver:
    """The solver with what is left of the cycle's time, no more than a gang's."""

    settings: Settings
    clock_s: Callable[[], float]
    deadline_s: float

    def place(self, state: ClusterState, gang: Gang, kept: Placement | None, elastic: bool) -> Placement | Unplaced:
        """Where it goes, floors only or with elastic replicas."""
        return place(
            state,
            gang,
            budget_s=self._budget_s(),
            clock_s=self.clock_s,
            kept=kept,
            elastic=elastic,
            explained=False,
        )

    def fits(self, state: ClusterState, gang: Gang, kept: Placement | None) -> bool:
        """Whether the floors fit; no if time ran out before that was known."""
        have = kept.replicas if kept else {}
        wanted = {group.name: max(0, group.min_replicas - have.get(group.name, 0)) for group in gang.groups}
        timer = Timer(self.clock_s() + self._budget_s(), self.clock_s)
        try:
            return possible(state, gang, wanted, timer, kept=kept)
        except BudgetSpentError:
            return False

    def _budget_s(self) -> float:
        return min(self.settings.gang_budget_s, max(0.0, self.deadline_s - self.clock_s()))
