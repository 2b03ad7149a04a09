"""Spare: elastic replicas on what is left when everybody who waits has had a turn."""

from __future__ import annotations

import numpy as np

from pointsman.core.placement.gang import RoleGroup
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.queues.actions import Cause, Why
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.elastic import Capped, capped
from pointsman.core.placement.queues.order import FairOrder

_SPARE = Why(Cause.SPARE)


def grown(books: Books) -> Books:
    """With elastic replicas as far as they fit and limits allow, and quotas too if the gang can't be preempted.
    The queue that lacks most goes first."""
    wanting = [p.gang for p in books.state.placements.values() if not p.is_full]
    line = FairOrder(books.tree, books.shares, wanting)
    while not books.is_late() and (gang := line.next(books.usage)) is not None:
        before = books.state.placements[gang.name]
        cut = capped(gang, before, books.usage.room(gang))
        why = books.why.get(gang.name, _SPARE)
        is_new = gang.name not in books.since_s and why.cause is Cause.WAITING
        after = None
        if is_new and any(_has_room(books, cut, before, group, movable=True) for group in cut.gang.groups):
            after = _afresh(books, cut, before)
        if after is None and not any(_has_room(books, cut, before, group) for group in cut.gang.groups):
            continue
        if after is None:
            after = _larger(cut, before, books.try_place(cut.gang, before, elastic=True))
        if after is not None:
            books = books.exchanged(after, why)
    return books


def _afresh(books: Books, cut: Capped, before: Placement) -> Placement | None:
    """A gang of this cycle has not started yet: its floors may go where there is more room for the rest."""
    return _larger(cut, before, books.released(cut.gang.name, _SPARE).try_place(cut.gang, elastic=True))


def _larger(cut: Capped, before: Placement, found: Placement | Unplaced) -> Placement | None:
    if isinstance(found, Unplaced):
        return None
    after = cut.allowed(found)
    return after if len(after.pods) > len(before.pods) else None


def _has_room(books: Books, cut: Capped, have: Placement, group: RoleGroup, *, movable: bool = False) -> bool:
    """Whether one replica more of a role might fit, as far as counts of pods by node say: most of the time none does.

    What is required to be together has chosen its domain already, unless the gang is still `movable`.
    """
    if have.replicas[group.name] >= group.max_replicas or group.name in cut.barred:
        return False
    state, asks = books.state, group.requests
    fits = state.up & state.suitability.of(group)
    if books.closed is not None:
        fits = fits & ~books.closed
    for scope in cut.gang.scopes():
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
