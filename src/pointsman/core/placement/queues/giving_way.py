"""Giving way: what others do so that a gang gets its place: move, give back what their queue has too much, or yield to
a gang of their queue that goes first. Each is tried whole; the first one that works is done."""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.queues.actions import Cause
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.moving import consolidated, settled
from pointsman.core.placement.queues.scenario import Scenario, make_room, replicas_of
from pointsman.core.placement.queues.usage import Usage
from pointsman.core.placement.queues.victims import may_reclaim, others_units, own_units


def given_way(books: Books, gang: Gang, kept: Placement | None = None) -> Books | None:
    """The gang placed; None if nobody's giving way is enough. `kept`: what is there of it, to be repaired."""
    if books.is_late() or not books.tree.is_leaf(gang.queue):
        return None
    if books.settings.consolidate and kept is None:
        moved = consolidated(books, gang)
        if moved is not None:
            return moved

    def cause(victim: str) -> Cause:
        return Cause.PREEMPTION if _queue(books, victim) == gang.queue else Cause.RECLAIM

    # What the gang has still itself is not asked for twice.
    usage = books.usage.changed(kept, None)
    own = own_units(books, gang)
    found = make_room(books, gang, others_units(books, gang, usage), cause, kept)
    if found is None:
        found = make_room(books, gang, own, cause, kept)
    if found is None and own and len(books.tree.queues) > 1:
        without_own = books.usage_without(replicas_of(own)).changed(kept, None)
        units = [*own, *others_units(books, gang, without_own)]
        found = make_room(books, gang, units, cause, kept) if len(units) > len(own) else None
        if found is not None and not _is_right(books, gang, usage, found):
            return None
    if found is None:
        return None
    after, before = found.books, books.state.placements
    for name in found.hit:
        if name not in after.state.placements:
            after, _ = settled(after, [before[name]], gang.name, cause(name))
    moved_names = set(found.hit)
    return replace(after, since_s={name: at for name, at in books.since_s.items() if name not in moved_names})


def _queue(books: Books, gang: str) -> str:
    return books.state.placements[gang].gang.queue


def _is_right(books: Books, gang: Gang, usage: Usage, found: Scenario) -> bool:
    """Whether the queue still has a right to what others gave up when those of its own gangs that could stay count."""
    before, after = books.state.placements, found.books.state.placements
    for name in found.hit:
        if _queue(books, name) == gang.queue:
            usage = usage.changed(before[name], after.get(name))
    others = {_queue(books, name) for name in found.hit} - {gang.queue}
    return all(may_reclaim(books, gang, queue, usage) for queue in others)
