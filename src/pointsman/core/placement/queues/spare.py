"""Spare: elastic replicas on what is left when everybody who waits has had a turn."""

from __future__ import annotations

from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.elastic import Capped, capped
from pointsman.core.placement.queues.order import FairOrder
from pointsman.core.placement.queues.rooms import Rooms

_SPARE = Why(Cause.SPARE)


def grown(books: Books) -> Books:
    """With elastic replicas as far as they fit and limits allow, and quotas too if the gang can't be preempted.
    The queue that lacks most goes first."""
    wanting = [p.gang for p in books.state.placements.values() if not p.is_full]
    line = FairOrder(books.tree, books.shares, wanting)
    rooms = Rooms(books.state, books.closed)
    while not books.is_late() and (gang := line.next(books.usage)) is not None:
        before = books.state.placements[gang.name]
        if not any(rooms.may_take(gang, before, group, movable=True) for group in gang.groups):
            continue
        cut = capped(gang, before, books.usage.room(gang))
        why = books.why.get(gang.name, _SPARE)
        is_new = gang.name not in books.since_s and why.cause is Cause.WAITING
        after = None
        if is_new and _may_grow(rooms, cut, before, movable=True):
            after = _afresh(books, cut, before)
        if after is None and not _may_grow(rooms, cut, before):
            continue
        if after is None:
            after = _larger(cut, before, books.try_place(cut.gang, before, elastic=True))
        if after is not None:
            books = books.exchanged(after, why)
            rooms = Rooms(books.state, books.closed)
    return books


def _may_grow(rooms: Rooms, cut: Capped, have: Placement, *, movable: bool = False) -> bool:
    groups = [group for group in cut.gang.groups if group.name not in cut.barred]
    return any(rooms.may_take(cut.gang, have, group, movable=movable) for group in groups)


def _afresh(books: Books, cut: Capped, before: Placement) -> Placement | None:
    """A gang of this cycle has not started yet: its floors may go where there is more room for the rest."""
    return _larger(cut, before, books.released(cut.gang.name, _SPARE).try_place(cut.gang, elastic=True))


def _larger(cut: Capped, before: Placement, found: Placement | Unplaced) -> Placement | None:
    if isinstance(found, Unplaced):
        return None
    after = cut.allowed(found)
    return after if len(after.pods) > len(before.pods) else None
