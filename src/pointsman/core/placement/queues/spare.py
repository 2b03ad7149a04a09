"""Spare: elastic replicas on what is left when everybody who waits has had a turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.amounts import NONE, Amounts, amounts_of, minus
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.order import FairOrder
from pointsman.core.placement.queues.usage import held_by

_SPARE = Why(Cause.SPARE)


def grown(books: Books) -> Books:
    """With elastic replicas as far as they fit and limits of queues let them; the queue that lacks most goes first."""
    wanting = [p.gang for p in books.state.placements.values() if not p.is_full]
    line = FairOrder(books.tree, books.shares, wanting)
    while not books.is_late() and (gang := line.next(books.usage)) is not None:
        before = books.state.placements[gang.name]
        capped = _capped(gang, before, books.usage.room(gang.queue))
        why = books.why.get(gang.name, _SPARE)
        is_new = gang.name not in books.since_s and why.cause is Cause.WAITING
        after = None
        if is_new and any(_has_room(books, capped, before, group, movable=True) for group in capped.groups):
            after = _afresh(books, capped, before)
        if after is None and not any(_has_room(books, capped, before, group) for group in capped.groups):
            continue
        if after is None:
            found = books.try_place(capped, before, elastic=True)
            if not isinstance(found, Unplaced) and len(found.pods) > len(before.pods):
                after = replace(found, gang=gang)
        # Roles without a floor can't be cut to nothing, so the limits are looked at once more.
        if after is not None:
            more = minus(held_by(after), held_by(before))
            if books.usage.refusal(gang, more, NONE) is None:
                books = books.exchanged(after, why)
    return books


def _afresh(books: Books, capped: Gang, before: Placement) -> Placement | None:
    """A gang of this cycle has not started yet: its floors may go where there is more room for the rest."""
    found = books.released(capped.name, _SPARE).try_place(capped, elastic=True)
    if isinstance(found, Unplaced) or len(found.pods) <= len(before.pods):
        return None
    return replace(found, gang=before.gang)


def _capped(gang: Gang, have: Placement, room: Amounts) -> Gang:
    """The gang with no more elastic replicas than the room allows; the role that lacks most is cut first."""
    counts = {group.name: max(group.max_replicas, have.replicas[group.name]) for group in gang.groups}
    sizes = {group.name: amounts_of(group.requests.times(group.pods_per_replica)) for group in gang.groups}

    def too_much(kind: int) -> bool:
        return sum(sizes[name][kind] * (counts[name] - have.replicas[name]) for name in counts) > room[kind]

    for kind in range(3):
        while too_much(kind):
            asking = [name for name in counts if counts[name] > have.replicas[name] and sizes[name][kind]]
            counts[max(asking, key=lambda name: counts[name] - have.replicas[name])] -= 1
    return replace(gang, groups=tuple(replace(group, max_replicas=counts[group.name] or 1) for group in gang.groups))


def _has_room(books: Books, gang: Gang, have: Placement, group: RoleGroup, *, movable: bool = False) -> bool:
    """Whether one replica more of a role might fit, as far as counts of pods by node say: most of the time none does.

    What is required to be together has chosen its domain already, unless the gang is still `movable`.
    """
    if have.replicas[group.name] >= group.max_replicas:
        return False
    state, asks = books.state, group.requests
    fits = state.up & state.suitability.of(group)
    if books.closed is not None:
        fits = fits & ~books.closed
    for scope in gang.scopes():
        there = next((pod.node for pod in have.pods if pod.role in scope.roles), None)
        if not movable and scope.required and group.name in scope.roles and there is not None:
            of_node = state.domains.of_node[state.topology.index(scope.level)]
            fits = fits & (of_node == of_node[state.row_of[there]])
    size = group.pods_per_replica
    room = np.where(fits, size, 0)
    if asks.whole_gpus:
        np.minimum(room, state.whole_free // asks.whole_gpus, out=room)
    elif asks.gpu_milli:
        np.minimum(room, (np.maximum(state.device_free_milli, 0) // asks.gpu_milli).sum(axis=1), out=room)
    if asks.cpu_milli:
        np.minimum(room, state.cpu_free_milli // asks.cpu_milli, out=room)
    if asks.memory_bytes:
        np.minimum(room, state.memory_free_bytes // asks.memory_bytes, out=room)
    if size > 1 and group.replica_required is not None:
        of_node = state.domains.of_node[state.topology.index(group.replica_required)]
        return bool(np.bincount(of_node, room).max(initial=0) >= size)
    return bool(room.sum() >= size)
