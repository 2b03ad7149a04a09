"""Scenario: a gang placed where others give something up; committed whole or not at all.

Of the units that may be given up, the shortest run from the front that makes room is looked for; then the gang is
planned there, and every replica that does not stand in the way of the plan stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.amounts import amounts_of, minus
from pointsman.core.placement.queues.books import Books, Replicas
from pointsman.core.placement.queues.usage import firm_part, floor_of, held_by
from pointsman.core.placement.queues.victims import Unit

_UNSAID = Why(Cause.WAITING)


@dataclass(frozen=True)
class Scenario:
    """The gang is placed; `hit` are gangs that hold less than before, or nothing."""

    books: Books
    hit: tuple[str, ...]


def make_room(
    books: Books,
    gang: Gang,
    units: Sequence[Unit],
    cause: Callable[[str], Cause],
    kept: Placement | None = None,
) -> Scenario | None:
    """The gang placed, with as little given up as the order of the units allows; None if all of them are not enough.

    `cause`: of what happens to a gang of that name. `kept`: what is there of the gang itself, to repair it.
    """
    found = _least(books, gang, units, kept)
    if found is None:
        return None
    taken, plan = found
    after = given_up(books, taken)
    after = after.placed(plan, _UNSAID) if kept is None else after.exchanged(plan, _UNSAID)
    hit = []
    # What was given up was disjoint, so whatever does not stand in the way of the plan can come back, in any order.
    for name in dict.fromkeys(unit.gang for unit in taken):
        after, is_whole = restored(after, books.state.placements[name])
        if not is_whole:
            hit.append(name)
    why = {**books.why, gang.name: _UNSAID if kept is None else Why(Cause.NODE_LOST)}
    for name in hit:
        why[name] = Why(cause(name), gang.name)
    return Scenario(replace(after, why=why), tuple(hit))


def given_up(books: Books, units: Sequence[Unit]) -> Books:
    """Without these units."""
    return books.without(replicas_of(units))


def replicas_of(units: Sequence[Unit]) -> Replicas:
    """By gang."""
    gone: dict[str, set[tuple[str, int]] | None] = {}
    for unit in units:
        if unit.role is None:
            gone[unit.gang] = None
        else:
            some = gone.setdefault(unit.gang, set())
            if some is not None:
                some.add((unit.role, unit.replica))
    return gone


def restored(books: Books, old: Placement) -> tuple[Books, bool]:
    """With a gang back where it was, and True; else with those of its replicas that can be, if it is whole with them;
    else without it."""
    name = old.gang.name
    back = _with(books, old)
    if back is not None:
        return back, True
    held = books.state.placements.get(name, replace(old, pods=()))
    for group in old.gang.groups:
        for replica in sorted({pod.replica for pod in old.pods if pod.role == group.name}):
            pods = tuple(pod for pod in old.pods if pod.role == group.name and pod.replica == replica)
            if pods[0] in held.pods:
                continue
            more = replace(held, pods=(*held.pods, *pods))
            with_more = _with(books, more)
            if with_more is not None:
                books, held = with_more, more
    if not held.is_whole and name in books.state.placements:
        books = books.released(name, _UNSAID)
    return books, False


def _least(
    books: Books, gang: Gang, units: Sequence[Unit], kept: Placement | None
) -> tuple[Sequence[Unit], Placement] | None:
    """The shortest run of units from the front that makes room, and the plan. More units never make less room."""
    least = _enough_in_sum(books, gang, units, kept)
    if not units or least is None or not _fits(books, gang, units, kept):
        return None
    low, high = max(0, least - 1), len(units)  # `low` units are too few, `high` are enough
    step = 1
    while low + 1 < high:
        tried = min(low + step, (low + high) // 2)
        if _fits(books, gang, units[:tried], kept):
            high, step = tried, len(units)
        else:
            low, step = tried, step * 2
    plan = given_up(books, units[:high]).try_place(gang, kept)
    return None if isinstance(plan, Unplaced) else (units[:high], plan)


def _enough_in_sum(books: Books, gang: Gang, units: Sequence[Unit], kept: Placement | None) -> int | None:
    """Fewer units than that hold too little together, wherever they are; None: all of them do."""
    lacking = books.lacking(gang, kept)
    left = {unit.gang: held_by(books.state.placements[unit.gang]) for unit in units}
    for number, unit in enumerate(units):
        if max(lacking) <= 0:
            return number
        gives = left[unit.gang]
        if unit.role is not None:
            group = books.state.placements[unit.gang].gang.group(unit.role)
            gives = amounts_of(group.requests.times(group.pods_per_replica))
        left[unit.gang] = minus(left[unit.gang], gives)
        lacking = minus(lacking, gives)
    return len(units) if max(lacking) <= 0 else None


def _fits(books: Books, gang: Gang, units: Sequence[Unit], kept: Placement | None) -> bool:
    if books.is_late():
        return False
    without = given_up(books, units)
    if kept is None and without.usage.refusal(gang, floor_of(gang), firm_part(gang)) is not None:
        return False
    return without.fits(gang, kept)


def _with(books: Books, placement: Placement) -> Books | None:
    """With the gang holding this, if it is free and its queue may have it."""
    if books.usage.refusal_of(placement, books.state.placements.get(placement.gang.name)) is not None:
        return None
    try:
        if placement.gang.name in books.state.placements:
            return books.exchanged(placement, _UNSAID)
        return books.placed(placement, _UNSAID)
    except PlacementError:
        return None
