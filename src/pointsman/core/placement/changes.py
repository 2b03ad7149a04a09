"""Changes: what would make a gang fit, each found by solving again with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pointsman.core.placement.assembly import pods_of
from pointsman.core.placement.attempt import attempt, possible
from pointsman.core.placement.constraints import Constraint, at_level, loosened
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Change, Placement
from pointsman.core.placement.state import ClusterState

MOST_GANGS_TRIED = 64
"""Held gangs that are tried as the one to move, smallest first."""
Counts = dict[str, int]


def looser_levels(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    constraints: Collection[Constraint],
    timer: Timer,
) -> list[Change]:
    """For each constraint that is in the way by itself: the nearest farther level that will do, or none at all.
    Raises BudgetSpentError."""
    names = state.topology.names
    found: list[Change] = []
    for constraint in constraints:
        others = [each for each in constraints if each is not constraint]
        if not possible(state, gang, wanted, timer, kept=kept, loosened=loosened(others)):
            continue
        for level in names[names.index(constraint.level) + 1 :]:
            only = loosened([*others, at_level(constraint, level)])
            if possible(state, gang, wanted, timer, kept=kept, loosened=only):
                text = f"{constraint.origin}: {level} instead of {constraint.level}"
                found.append(Change("looser_level", text, constraint=constraint.origin, level=level))
                break
        else:
            text = f"no {constraint.origin} (it is {constraint.level})"
            found.append(Change("looser_level", text, constraint=constraint.origin))
    if not found and constraints:
        found += _all_looser(state, gang, wanted, kept, constraints, timer)
    return found


def _all_looser(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    constraints: Collection[Constraint],
    timer: Timer,
) -> list[Change]:
    names = state.topology.names
    for steps in range(1, len(names)):
        moved = [
            at_level(each, names[names.index(each.level) + steps])
            for each in constraints
            if names.index(each.level) + steps < len(names)
        ]
        if possible(state, gang, wanted, timer, kept=kept, loosened=loosened(moved)):
            far = {each.origin: each.level for each in moved}
            parts = [
                f"{each.origin}: {far[each.origin]} instead of {each.level}"
                if each.origin in far
                else f"no {each.origin}"
                for each in constraints
            ]
            origins = ", ".join(each.origin for each in constraints)
            return [Change("looser_level", "all of " + "; ".join(parts), constraint=origins)]
    return [
        Change(
            "looser_level",
            "no constraints of closeness at all",
            constraint=", ".join(each.origin for each in constraints),
        )
    ]


def fewer_replicas(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    timer: Timer,
    may_have: Callable[[Mapping[str, int]], bool] = lambda _: True,
) -> Change | None:
    """The least replicas (by GPU, then by number) to give up: of one role, or of all in step and then as many back as
    fit; every role keeps one. `may_have`: whether so many more are allowed, which holds for fewer if it does for more.
    None if not even one of each fits. Raises BudgetSpentError."""
    have = {group.name: 0 for group in gang.groups} if kept is None else kept.replicas
    least = {role: min(count, 0 if have[role] else 1) for role, count in wanted.items()}

    def fits(counts: Mapping[str, int]) -> bool:
        return may_have(counts) and possible(state, gang, counts, timer, kept=kept)

    if not fits(least):
        return None
    options = [
        _back({**wanted, role: least[role]}, role, wanted[role], fits)
        for role in wanted
        if fits({**wanted, role: least[role]})
    ]
    steps = max(wanted[role] - least[role] for role in wanted)
    if steps and not options:
        step = _most(0, steps, lambda step: fits(_in_step(least, wanted, step, steps)))
        counts = _in_step(least, wanted, step, steps)
        for role in sorted(wanted, key=lambda role: -gang.group(role).requests.gpu_milli):
            counts = _back(counts, role, wanted[role], fits)
        options.append(counts)
    if not options:
        return None

    def given_up(counts: Counts) -> tuple[int, int]:
        lost = {role: wanted[role] - counts[role] for role in wanted}
        milli = sum(
            count * gang.group(role).pods_per_replica * gang.group(role).requests.gpu_milli
            for role, count in lost.items()
        )
        return milli, sum(lost.values())

    best = min(options, key=given_up)
    floors = tuple((role, have[role] + count) for role, count in best.items() if count < wanted[role])
    parts = [f"{role}: {count} instead of {have[role] + wanted[role]} replicas" for role, count in floors]
    return Change("fewer_replicas", ", ".join(parts), replicas=floors)


def gang_to_move(
    state: ClusterState, gang: Gang, wanted: Mapping[str, int], kept: Placement | None, timer: Timer
) -> Change | None:
    """The smallest held gang without which this one fits: preferably one that then fits elsewhere as large as it is,
    otherwise one whose floors still do, otherwise one of lower priority that would have to go. Non-preemptible ones are
    left alone. Raises BudgetSpentError."""
    sizes = sorted(
        (placement.requests.gpu_milli, name)
        for name, placement in state.placements.items()
        if name != gang.name and placement.gang.preemptible
    )
    shrunk: Change | None = None
    evicted: Change | None = None
    for _, name in sizes[:MOST_GANGS_TRIED]:
        victim = state.placements[name]
        without = state.release(name)
        if not possible(without, gang, wanted, timer, kept=kept):
            continue
        placed = attempt(without, gang, wanted, timer, kept=kept)
        if placed is None or placed.problem is None or placed.found is None:
            continue
        own = kept.pods if kept else ()
        whole = Placement(gang, pods_of(without, placed.problem, placed.found.counts, own))
        after = without.exchange(whole) if own else without.hold(whole)
        if possible(after, victim.gang, victim.replicas, timer):
            return Change("move_gang", f"move gang {name}: it fits elsewhere", gang=name)
        floors = {group.name: group.min_replicas for group in victim.gang.groups}
        if shrunk is None and possible(after, victim.gang, floors, timer):
            text = f"take elastic replicas from gang {name}: its floors still fit"
            shrunk = Change("shrink_gang", text, gang=name)
        if evicted is None and victim.gang.priority < gang.priority:
            text = f"evict gang {name} (priority {victim.gang.priority}): it would not fit elsewhere"
            evicted = Change("evict_gang", text, gang=name)
    return shrunk or evicted


def _back(counts: Counts, role: str, most: int, fits: Callable[[Counts], bool]) -> Counts:
    """With as many replicas of a role as fit beside the others."""
    return {**counts, role: _most(counts[role], most, lambda count: fits({**counts, role: count}))}


def _in_step(low: Mapping[str, int], high: Mapping[str, int], step: int, steps: int) -> Counts:
    return {role: low[role] + (high[role] - low[role]) * step // steps for role in high}


def _most(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The greatest number from low (which holds) to high that holds."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
