"""Books: all that a cycle knows while it plans. Every change gives new books, so a transaction is rolled back by
forgetting them, and committed by going on with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Why
from pointsman.core.placement.queues.amounts import Amounts
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.queues.usage import Usage
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState

Solve = Callable[[ClusterState, Gang, Placement | None, bool], Placement | Unplaced]
"""State, gang, what is kept of it, whether elastic replicas are wanted → where it goes, inside the time there is."""


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
    solve: Solve
    is_late: Callable[[], bool]
    """Whether the cycle's time is spent."""
    closed: Bools | None = None
    """Nodes that are set aside for another gang."""
    why: Mapping[str, Why] = field(default_factory=lambda: MappingProxyType({}))

    def try_place(self, gang: Gang, kept: Placement | None = None, *, elastic: bool = False) -> Placement | Unplaced:
        """Where it goes, away from nodes that are set aside."""
        state = self.state
        if self.closed is not None:
            state = replace(state, up=state.up & ~self.closed)
        return self.solve(state, gang, kept, elastic)

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


def timed_solver(settings: Settings, clock_s: Callable[[], float], deadline_s: float) -> Solve:
    """The solver with what is left of the cycle's time, no more than a gang's."""

    def solve(state: ClusterState, gang: Gang, kept: Placement | None, elastic: bool) -> Placement | Unplaced:
        budget_s = min(settings.gang_budget_s, max(0.0, deadline_s - clock_s()))
        return place(state, gang, budget_s=budget_s, clock_s=clock_s, kept=kept, elastic=elastic, explained=False)

    return solve
