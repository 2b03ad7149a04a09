"""Several deployments on one cluster: the one of higher priority first, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.assembly import spread_of
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Reason, Unplaced
from pointsman.core.placement.queues.tree import QueueTree
from pointsman.core.placement.queues.usage import Usage, firm_part, floor_of, held_by
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
    state: ClusterState,
    gangs: Sequence[Gang],
    *,
    budget_s: float,
    clock_s: Callable[[], float],
    tree: QueueTree | None = None,
) -> Planned:
    """Places gangs by priority, equal ones as they are given; `budget_s` is for each.

    With queues none has more than it may: floors that would exceed it are refused, elastic replicas end there.
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
        usage = None if tree is None else Usage.of(tree, now.placements.values())
        answer = _answer(now, gang, usage, budget_s, clock_s)
        if isinstance(answer, Placement):
            now = now.hold(answer)
        answers.append(answer)
    return Planned(state, now, tuple(answers))


def _answer(
    state: ClusterState, gang: Gang, usage: Usage | None, budget_s: float, clock_s: Callable[[], float]
) -> Placement | Unplaced:
    refusal = usage.refusal(gang, floor_of(gang), firm_part(gang)) if usage is not None else None
    if refusal is not None:
        return Unplaced(gang, Reason.QUOTA_EXCEEDED, f"{refusal[:1].upper()}{refusal[1:]}.", constraint="queue")
    answer = place(state, gang, budget_s=budget_s, clock_s=clock_s)
    return answer if usage is None or isinstance(answer, Unplaced) else _within(state, answer, usage)


def _within(state: ClusterState, placement: Placement, usage: Usage) -> Placement:
    """Less the elastic replicas that its queue may not have, the last ones first."""
    gang, cut = placement.gang, placement
    while usage.refusal(gang, held_by(cut), firm_part(gang)) is not None:
        last = [(replica, group.name) for group in gang.groups for replica in cut.elastic(group)[:1]]
        if not last:
            break
        replica, role = max(last)
        cut = cut.without(role, [replica])
    return cut if cut is placement else replace(cut, spread=spread_of(state, cut.pods))
