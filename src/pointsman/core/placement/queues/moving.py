"""Moving: gangs that go elsewhere so that another one fits, if all of them find a place as large as they had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.scenario import given_up, restored
from pointsman.core.placement.queues.usage import firm_part, floor_of, held_by
from pointsman.core.placement.queues.victims import Unit


def consolidated(books: Books, gang: Gang) -> Books | None:
    """The gang placed, and some others moved; None if that does not help. Small gangs are moved before large ones, and
    no more GPUs than are placed: moving costs a start-up each."""
    # Moving makes no room by itself.
    if not books.is_enough_free(gang) or books.usage.refusal(gang, floor_of(gang), firm_part(gang)) is not None:
        return None
    movable = sorted(_movable(books, gang), key=lambda placement: (held_by(placement)[0], placement.gang.name))
    count = 1
    while movable and not books.is_late():
        units = [Unit(placement.gang.name) for placement in movable[:count]]
        found = _moved(books, gang, units)
        if found is not None or count >= len(movable):
            return found
        count *= 2
    return None


def settled(books: Books, gone: Iterable[Placement], in_favour_of: str, cause: Cause) -> tuple[Books, tuple[str, ...]]:
    """Gangs that hold nothing any more put elsewhere with their floors where that is possible and their queue may have
    it; and the others."""
    left = []
    for old in gone:
        refusal = books.usage.refusal(old.gang, floor_of(old.gang), firm_part(old.gang))
        found = books.try_place(old.gang) if refusal is None and books.fits(old.gang) else None
        if isinstance(found, Placement):
            books = books.placed(found, Why(cause, in_favour_of))
        else:
            left.append(old.gang.name)
    return books, tuple(left)


def as_large(gang: Gang, have: Placement) -> Gang:
    """The gang with what it has now as its floors."""
    groups = tuple(
        replace(group, min_replicas=max(group.min_replicas, have.replicas[group.name])) for group in gang.groups
    )
    return replace(gang, groups=groups)


def _moved(books: Books, gang: Gang, units: Sequence[Unit]) -> Books | None:
    after = given_up(books, units)
    if not after.fits(gang):
        return None
    plan = after.try_place(gang)
    if isinstance(plan, Unplaced):
        return None
    after = after.placed(plan, Why(Cause.WAITING))
    displaced = []
    for unit in units:
        old = books.state.placements[unit.gang]
        after, is_whole = restored(after, old)
        if not is_whole:
            if unit.gang in after.state.placements:
                after = after.released(unit.gang, Why(Cause.CONSOLIDATION, gang.name))
            displaced.append(old)
    moved_gpus = sum(held_by(old)[0] for old in displaced)
    if len(displaced) > books.settings.most_moved or moved_gpus > floor_of(gang)[0]:
        return None
    why = {**books.why, gang.name: Why(Cause.WAITING)}
    for old in sorted(displaced, key=lambda placement: -held_by(placement)[0]):
        wanted = as_large(old.gang, old)
        found = after.try_place(wanted) if after.fits(wanted) else None
        if not isinstance(found, Placement):
            return None
        after = after.placed(replace(found, gang=old.gang), Why(Cause.CONSOLIDATION))
        why[old.gang.name] = Why(Cause.CONSOLIDATION, gang.name)
    moved = {old.gang.name for old in displaced}
    return replace(after, why=why, since_s={name: s for name, s in books.since_s.items() if name not in moved})


def _movable(books: Books, gang: Gang) -> list[Placement]:
    found = []
    for name, placement in books.state.placements.items():
        ran_s = books.runs_for_s(name)
        pause_s = max(placement.gang.min_runtime_s, books.settings.move_pause_s)
        if name != gang.name and placement.gang.preemptible and ran_s is not None and ran_s >= pause_s:
            found.append(placement)
    return found
