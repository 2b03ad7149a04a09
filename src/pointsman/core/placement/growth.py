"""Growth: elastic replicas above the floors. First those that leave the spread as it is, roles in step with each other;
then those that keep only what is required."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pointsman.core.placement.assembly import pods_of
from pointsman.core.placement.attempt import Attempt, attempt, possible
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError

Counts = dict[str, int]


def grown(
    state: ClusterState,
    gang: Gang,
    kept: Placement | None,
    floors: Placement,
    floor_wanted: Mapping[str, int],
    most_cost: int,
    timer: Timer,
) -> Placement:
    """`floors` (which holds what is kept and `floor_wanted` more) with as many elastic replicas as fit. Floors may move
    for it, what is kept not; their spread does not get worse. When time runs out, what was found so far, which it says.
    """
    best = floors
    steps = max(group.max_replicas - group.min_replicas for group in gang.groups)
    have = Counts() if kept is None else dict(kept.replicas)

    def together(step: int) -> Counts:
        found = {}
        for group in gang.groups:
            elastic = (group.max_replicas - group.min_replicas) * step // max(steps, 1)
            target = group.min_replicas + elastic - have.get(group.name, 0)
            found[group.name] = max(target, floor_wanted.get(group.name, 0))
        return found

    try:
        near = _most(steps, lambda step: attempt(state, gang, together(step), timer, kept=kept, most_cost=most_cost))
        if near is not None:
            best = _with(state, floors, kept, near)
        placed = dict(best.replicas)

        def further(step: int) -> Counts:
            return {
                group.name: max(
                    0,
                    group.min_replicas
                    + (group.max_replicas - group.min_replicas) * step // max(steps, 1)
                    - placed[group.name],
                )
                for group in gang.groups
            }

        best = _spilled(state, gang, best, steps, further, timer)
        for group in gang.groups:
            room = group.max_replicas - best.replicas[group.name]
            if room > 0:
                best = _spilled(state, gang, best, room, partial(_only, group.name), timer)
    except BudgetSpentError:
        return replace(best, growth_cut_short=True)
    return replace(best, growth_cut_short=False)


def _only(role: str, count: int) -> Counts:
    return {role: count}


def _spilled(
    state: ClusterState, gang: Gang, base: Placement, most: int, wanted: Callable[[int], Counts], timer: Timer
) -> Placement:
    """As many more as fit while all that is required holds; where they go is chosen for the least spread."""
    held = state.release(gang.name) if gang.name in state.placements else state
    if base.pods:
        held = held.hold(replace(base, gang=gang))
    count = _most_true(most, lambda step: possible(held, gang, wanted(step), timer, kept=base))
    if not count or not any(wanted(count).values()):
        return base
    found = attempt(held, gang, wanted(count), timer, kept=base)
    return base if found is None else _with(held, base, base, found)


def _with(state: ClusterState, base: Placement, kept: Placement | None, found: Attempt) -> Placement:
    if found.problem is None or found.found is None:
        return base
    pods = pods_of(state, found.problem, found.found.counts, kept.pods if kept else ())
    return replace(base, pods=pods)


def _most(most: int, tried: Callable[[int], Attempt | None]) -> Attempt | None:
    """The attempt with the most steps that succeeds; None if even one step fails. More steps never fit where fewer
    do not."""
    best: Attempt | None = None
    low, high = 0, most
    step = most
    while low < high:
        found = tried(step)
        if found is None:
            high = step - 1
        else:
            best, low = found, step
        step = (low + high + 1) // 2
    return best


def _most_true(most: int, holds: Callable[[int], bool]) -> int:
    low, high = 0, most
    step = most
    while low < high:
        if holds(step):
            low = step
        else:
            high = step - 1
        step = (low + high + 1) // 2
    return low
