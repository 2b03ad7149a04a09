"""Reservation: nodes set aside for a gang that has waited long, so that small newcomers can't keep it waiting for ever.

The oldest gang that waits for capacity and has waited for `reserve_after_s` gets nodes on which it would fit if some
of the gangs there ended, those that have run longest first. From then on nobody else is put there, of whatever
priority, except repairs. The others keep all other nodes; one gang at a time has nodes set aside, so no more is kept
free than one gang needs. Nothing is let in before it that "will end in time", since deployments do not say when they
end.

Bound: if gangs end within T of being placed, no longer than `reserve_for_s`, nodes stay up, and the gang fits on the
empty cluster within its queue's limits, then a gang with n older ones waiting is placed within
`reserve_after_s` + (n + 1) × T of its submission, plus the time between cycles. If nodes set aside do not become free
for `reserve_for_s`, the next oldest gang has its turn, and this one again after as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.giving_way import given_way
from pointsman.core.placement.queues.usage import firm_part, floor_of


@dataclass(frozen=True, slots=True)
class SetAside:
    """Nodes for one gang."""

    gang: str
    nodes: frozenset[str]
    since_s: float


@dataclass(frozen=True)
class Reservations:
    """What one cycle tells the next."""

    current: SetAside | None = None
    resting_until_s: Mapping[str, float] = field(default_factory=dict)
    """Gangs whose turn passed in vain."""


def claimed(books: Books, waiting: Mapping[str, Gang], reservations: Reservations) -> tuple[Books, Reservations]:
    """The gang with nodes set aside placed if it fits by now, anywhere; else the nodes closed to the others."""
    resting = {
        name: until_s
        for name, until_s in reservations.resting_until_s.items()
        if until_s > books.now_s and name in waiting
    }
    current = reservations.current
    gang = waiting.get(current.gang) if current else None
    if current is None or gang is None or books.usage.refusal(gang, floor_of(gang), firm_part(gang)) is not None:
        return books, Reservations(None, resting)
    found = books.try_place(gang) if books.fits(gang) else None
    if isinstance(found, Placement):
        return books.placed(found, Why(Cause.WAITING)), Reservations(None, resting)
    way = given_way(books, gang)
    if way is not None:
        return way, Reservations(None, resting)
    if books.now_s - current.since_s >= books.settings.reserve_for_s:
        resting[gang.name] = books.now_s + books.settings.reserve_for_s
        return books, Reservations(None, resting)
    rows = [books.state.row_of[node] for node in current.nodes if node in books.state.row_of]
    if len(rows) < len(current.nodes) or not books.state.up[rows].all():
        nodes = _nodes_for(books, gang)
        if nodes is None:
            return books, Reservations(None, resting)
        current = replace(current, nodes=nodes)
    return closed_for(books, current), Reservations(current, resting)


def closed_for(books: Books, aside: SetAside) -> Books:
    """With its nodes closed to the others."""
    closed = np.zeros(len(books.state.nodes), dtype=np.bool_)
    closed[[books.state.row_of[node] for node in aside.nodes]] = True
    return replace(books, closed=closed)


def next_in_line(books: Books, starving: Iterable[Gang], reservations: Reservations) -> Reservations:
    """Nodes set aside for the oldest of the gangs that wait for capacity, if it has waited long enough and nobody else
    has some."""
    if reservations.current is not None:
        return reservations
    nowhere: set[str] = set()
    for gang in sorted(starving, key=lambda gang: (gang.submitted_at_s, gang.name)):
        if books.now_s - gang.submitted_at_s < books.settings.reserve_after_s or books.is_late():
            break
        if gang.name in reservations.resting_until_s or gang.shape in nowhere:
            continue
        nodes = _nodes_for(books, gang)
        nowhere.add(gang.shape)
        if nodes is not None:
            return replace(reservations, current=SetAside(gang.name, nodes, books.now_s))
    return reservations


def _nodes_for(books: Books, gang: Gang) -> frozenset[str] | None:
    """Where it would fit if as few as possible of the gangs ended that have run longest; None: nowhere at all."""
    books = replace(books, closed=None)
    names = sorted(books.state.placements, key=lambda name: (books.since_s.get(name, books.now_s), name))

    def without(count: int) -> Books:
        return books.without(dict.fromkeys(names[:count]))

    low, high = -1, len(names)
    if not without(high).fits(gang):
        return None
    while low + 1 < high:
        middle = (low + high) // 2
        if without(middle).fits(gang):
            high = middle
        else:
            low = middle
    plan = without(high).try_place(gang)
    return None if isinstance(plan, Unplaced) else plan.nodes
