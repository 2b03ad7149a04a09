"""Solver: places a gang whole, or says why not. Pure: the state stays as it is; hold the placement to get the next."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.assembly import pods_of, spread_of
from pointsman.core.placement.attempt import attempt
from pointsman.core.placement.explanation import explain, reason_of
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.growth import grown
from pointsman.core.placement.mixing import mixed
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Optimal, Placement, PodPlace, Unplaced
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError

_FLOOR_SHARE = 0.8
"""Of the time, what the search for the floors may use; the rest is for elastic replicas and explanations."""


def place(
    state: ClusterState,
    gang: Gang,
    *,
    budget_s: float,
    clock_s: Callable[[], float],
    kept: Placement | None = None,
    elastic: bool = True,
    explained: bool = True,
) -> Placement | Unplaced:
    """Where all pods of a gang go, floors first, then (`elastic`) as many more as fit; or why it goes nowhere.

    `kept` is what is there of it already (a gang to repair or to grow): it stays where it is, it chooses the domain of
    what is required, and only what is missing is added. If the state holds it, its resources count as its own.
    `explained` False names the reason, but measures nothing and tries no changes. `clock_s` is any clock that does not
    go back.
    Raises PlacementError for a level that the topology lacks, or a gang that is held and not `kept`.
    """
    started_s = clock_s()
    timer = Timer(started_s + budget_s, clock_s)
    if kept is None and gang.name in state.placements:
        raise PlacementError(f"gang {gang.name} is placed already; pass `kept`, or release it first")
    if kept is not None:
        state = _holding_only(state, kept)
    have = {group.name: 0 for group in gang.groups} if kept is None else kept.replicas
    wanted = {group.name: max(0, group.min_replicas - have[group.name]) for group in gang.groups}
    try:
        found = attempt(state, gang, wanted, timer.part(_FLOOR_SHARE), kept=kept)
    except BudgetSpentError:
        answer: Placement | Unplaced = reason_of(state, gang, wanted, kept, timer, proved=False, measured=explained)
        return replace(answer, elapsed_s=clock_s() - started_s)
    if found is None:
        if explained:
            answer = explain(state, gang, wanted, kept, timer)
        else:
            answer = reason_of(state, gang, wanted, kept, timer, measured=False)
        return replace(answer, elapsed_s=clock_s() - started_s)
    own = kept.pods if kept else ()
    if found.problem is None or found.found is None:
        placed = Placement(gang, own, Optimal())
        top = 0 if kept is None else kept.cost
    else:
        pods = pods_of(state, found.problem, found.found.counts, own)
        top = found.found.cost
        placed = Placement(gang, pods, found.found.statement, top, found.found.bound)
    if elastic and not placed.is_full:
        placed = grown(state, gang, kept, placed, wanted, top, timer)
    return _finished(state, placed, own, clock_s() - started_s)


def grow(state: ClusterState, placement: Placement, *, budget_s: float, clock_s: Callable[[], float]) -> Placement:
    """A gang that has not started yet, with as many elastic replicas as fit: its floors may go elsewhere for that, but
    their spread does not get worse. What was proved about them holds still. Whether the state holds it is all the same.
    """
    started_s = clock_s()
    gang = placement.gang
    if gang.name in state.placements:
        state = state.release(gang.name)
    floors = {group.name: group.min_replicas for group in gang.groups}
    timer = Timer(started_s + budget_s, clock_s)
    found = placement if placement.is_full else grown(state, gang, None, placement, floors, placement.cost, timer)
    return _finished(state, found, (), placement.elapsed_s + clock_s() - started_s)


def _finished(state: ClusterState, placed: Placement, own: Collection[PodPlace], elapsed_s: float) -> Placement:
    pods = mixed(state, placed.gang, placed.pods, own)
    return replace(placed, pods=pods, spread=spread_of(state, pods), elapsed_s=elapsed_s)


def _holding_only(state: ClusterState, kept: Placement) -> ClusterState:
    """The state in which of the gang exactly what is kept is held."""
    name = kept.gang.name
    if name in state.placements:
        state = state.release(name)
    return state.hold(kept) if kept.pods else state
