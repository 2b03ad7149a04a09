"""Repair: gangs that lost nodes, before anybody who waits. Nothing stays that is below its floor.

What is left stays and gets what it lacks; if that is not possible the whole gang starts elsewhere; if that is not
possible others give way for it as they would for a newcomer; and if that is not enough it gives up what it has and
waits, first in line.
"""

from __future__ import annotations

from dataclasses import replace

from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.giving_way import given_way
from pointsman.core.placement.queues.order import in_queue

_LOST = Why(Cause.NODE_LOST)


def repaired(books: Books) -> tuple[Books, tuple[str, ...]]:
    """Every gang whole or gone, and the names of those that are gone. Nodes set aside may be used for it."""
    state = books.state
    down = {node.name for row, node in enumerate(state.nodes) if not state.ready[row]}
    broken: list[Placement] = []
    closed, books = books.closed, replace(books, closed=None)
    for name in state.hit(down) if down else ():
        kept = state.placements[name].without_nodes(down)
        if kept.pods and kept.is_whole:
            books = books.exchanged(kept, _LOST)
        else:
            broken.append(kept)
    # Whoever has still to be repaired is nobody's victim.
    since_s, names = books.since_s, {kept.gang.name for kept in broken}
    books = replace(books, since_s={name: at for name, at in books.since_s.items() if name not in names})
    gone = []
    for kept in sorted(broken, key=lambda placement: in_queue(placement.gang)):
        name = kept.gang.name
        found = _mended(books, kept) or _restarted(books, kept)
        if found is None:
            gone.append(name)
            found = books.released(name, _LOST)
        books = found
    return replace(books, closed=closed, since_s=since_s), tuple(gone)


def _mended(books: Books, kept: Placement) -> Books | None:
    if not kept.pods:
        return None
    found = books.try_place(kept.gang, kept)
    return None if isinstance(found, Unplaced) else books.exchanged(found, _LOST)


def _restarted(books: Books, kept: Placement) -> Books | None:
    without = books.released(kept.gang.name, _LOST)
    found = without.try_place(kept.gang)
    if not isinstance(found, Unplaced):
        return without.placed(found, _LOST)
    if kept.pods:
        way = given_way(books.exchanged(kept, _LOST), kept.gang, kept)
        if way is not None:
            return way
    way = given_way(without, kept.gang)
    return None if way is None else replace(way, why={**way.why, kept.gang.name: _LOST})
