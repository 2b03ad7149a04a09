"""Several deployments on one cluster: the one of higher priority first, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState


@dataclass(frozen=True)
class Planned:
    """What came of each, and the cluster with those that were placed."""

    before: ClusterState
    after: ClusterState
    answers: tuple[Placement | Unplaced, ...]
    """In the order they were tried."""

    @property
    def placed(self) -> tuple[Placement, ...]:
        """Those that have a place."""
        return tuple(answer for answer in self.answers if isinstance(answer, Placement))


def place_in_order(
    state: ClusterState, gangs: Sequence[Gang], *, budget_s: float, clock_s: Callable[[], float]
) -> Planned:
    """Places gangs by priority, equal ones as they are given; `budget_s` is for each.

    Raises PlacementError for two gangs of one name, and for levels that the topology lacks.
    """
    names: set[str] = set()
    for gang in gangs:
        if gang.name in names:
            raise PlacementError(f"two deployments have the name {gang.name}; each needs one of its own")
        names.add(gang.name)
    now = state
    answers = []
    for gang in sorted(gangs, key=lambda gang: -gang.priority):
        answer = place(now, gang, budget_s=budget_s, clock_s=clock_s)
        if isinstance(answer, Placement):
            now = now.hold(answer)
        answers.append(answer)
    return Planned(state, now, tuple(answers))
