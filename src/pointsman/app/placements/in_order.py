"""Several deployments on one cluster, each whole or not at all: floors of all first, then elastic replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.assembly import spread_of
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.elastic import Capped, capped
from pointsman.core.placement.queues.refusal import refused
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.queues.usage import Usage
from pointsman.core.placement.solver import grow, place
from pointsman.core.placement.state import ClusterState


@dataclass(frozen=True)
class Planned:
    """What came of each, and the cluster with those that were placed."""

    before: ClusterState
    after: ClusterState
    answers: tuple[Placement | Unplaced, ...]
    """In the order they were tried."""
    held_back: frozenset[str] = frozenset()
    """Deployments with fewer elastic replicas than they ask for because their queue may have no more."""

    @property
    def placed(self) -> tuple[Placement, ...]:
        """Those that have a place."""
        return tuple(answer for answer in self.answers if isinstance(answer, Placement))


def place_in_order(
    state: ClusterState,
    gangs: Sequence[Gang],
    *,
    budget_s: float,
    clock_s: Callable[[], float],
    tree: QueueTree | None = None,
) -> Planned:
    """Places the floors of all gangs by priority, equal ones as they are given; what is left goes to elastic replicas,
    in the same order. `budget_s` is for each gang.

    With queues none has more than it may: floors that would exceed it are refused, elastic replicas end there.
    Raises PlacementError for two gangs of one name, and for levels that the topology lacks.
    """
    names: set[str] = set()
    for gang in gangs:
        if gang.name in names:
            raise PlacementError(f"two deployments have the name {gang.name}; each needs one of its own")
        names.add(gang.name)
    now, usage = state, None if tree is None else Usage.of(tree, state.placements.values())
    answers: list[Placement | Unplaced] = []
    for gang in sorted(gangs, key=lambda gang: -gang.priority):
        answer = _floors(now, gang, usage, budget_s, clock_s)
        if isinstance(answer, Placement):
            now = now.hold(answer)
            usage = None if usage is None else usage.changed(None, answer)
        answers.append(answer)
    held_back: set[str] = set()
    for at, answer in enumerate(answers):
        if isinstance(answer, Placement) and not answer.is_full:
            cut = _cut(answer, usage)
            answers[at] = grown = _grown(now, answer, cut, budget_s, clock_s)
            if any(
                cut.most(role) <= grown.replicas[role] < answer.gang.group(role).max_replicas for role in grown.replicas
            ):
                held_back.add(answer.gang.name)
            now = now.exchange(grown)
            usage = None if usage is None else usage.changed(answer, grown)
    return Planned(state, now, tuple(answers), frozenset(held_back))


def _floors(
    state: ClusterState, gang: Gang, usage: Usage | None, budget_s: float, clock_s: Callable[[], float]
) -> Placement | Unplaced:
    started_s = clock_s()
    refusal = None if usage is None else refused(state, gang, usage, Timer(started_s + budget_s, clock_s))
    if refusal is not None:
        return replace(refusal, elapsed_s=clock_s() - started_s)
    return place(state, gang, budget_s=budget_s, clock_s=clock_s, elastic=False)


def _cut(floors: Placement, usage: Usage | None) -> Capped:
    """What the gang's queue may have of it."""
    gang = floors.gang
    return Capped(gang, frozenset(), gang) if usage is None else capped(gang, floors, usage.room(gang))


def _grown(
    state: ClusterState, floors: Placement, cut: Capped, budget_s: float, clock_s: Callable[[], float]
) -> Placement:
    left_s = max(0.0, budget_s - floors.elapsed_s)
    found = grow(state, replace(floors, gang=cut.gang), budget_s=left_s, clock_s=clock_s)
    allowed = cut.allowed(found)
    return allowed if len(allowed.pods) == len(found.pods) else replace(allowed, spread=spread_of(state, allowed.pods))
