"""Cycle: one look at a cluster and all who wait for it; what to place, to grow, to move, to shrink and to evict.

In this order: what lost nodes is repaired; gangs that lost their place by that wait first; the gang that nodes are set
aside for; then everybody else in fair order, each of which may make others give way; then elastic replicas on what is
left; then nodes are set aside for the oldest gang that still waits. Every step is done whole or not at all: no gang
ever holds a part of its floors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Reason, Unplaced
from pointsman.core.placement.queues.actions import Action, Cause, Why, actions_between
from pointsman.core.placement.queues.amounts import NONE, Amounts, plus
from pointsman.core.placement.queues.books import Books, Settings, TimedSolver
from pointsman.core.placement.queues.fair_share import fair_shares
from pointsman.core.placement.queues.giving_way import given_way
from pointsman.core.placement.queues.order import FairOrder, in_queue
from pointsman.core.placement.queues.repair import repaired
from pointsman.core.placement.queues.reservation import Reservations, claimed, next_in_line
from pointsman.core.placement.queues.spare import grown
from pointsman.core.placement.queues.tree import SINGLE_QUEUE, QueueTree
from pointsman.core.placement.queues.usage import Usage, firm_part, floor_of, held_by, wish_of
from pointsman.core.placement.state import ClusterState

_CAPACITY = (Reason.INSUFFICIENT_CAPACITY, Reason.TOPOLOGY_UNSATISFIED)
_GIVING_WAY_SHARE = 0.7
"""Of a cycle's time: after that gangs are only placed where there is room."""


@dataclass(frozen=True)
class CycleResult:
    """What a cycle came to."""

    state: ClusterState
    """With everything done."""
    actions: tuple[Action, ...]
    """What is different, in an order in which it can be carried out."""
    waiting: Mapping[str, Unplaced]
    """Gangs that hold nothing, and why."""
    shares: Mapping[str, Amounts]
    """Fair share of each queue."""
    reservations: Reservations
    """For the next cycle."""
    lost: frozenset[str]
    """Waiting gangs that had a place and lost it with a node; they go first in the next cycle."""


def cycle(
    state: ClusterState,
    pending: Sequence[Gang],
    since_s: Mapping[str, float],
    now_s: float,
    *,
    clock_s: Callable[[], float],
    tree: QueueTree = SINGLE_QUEUE,
    settings: Settings | None = None,
    reservations: Reservations | None = None,
    lost: Collection[str] = (),
) -> CycleResult:
    """Plan one cycle. The state holds what runs; nodes that failed are not ready in it (`state.with_ready`).

    Args:
        pending: gangs that wait; those evicted earlier with the age they had.
        since_s: of every gang that runs, when it was placed or moved last.
        now_s: on the clock of `submitted_at_s` and `since_s`.
        clock_s: for time budgets; any clock that does not go back.
        reservations, lost: what the cycle before gave.

    Raises PlacementError for a gang that waits and runs, or waits twice, or that runs since nobody knows when.
    """
    _check(state, pending, since_s)
    settings = settings or Settings()
    started_s = clock_s()
    deadline_s = started_s + settings.cycle_budget_s
    early_s = started_s + settings.cycle_budget_s * _GIVING_WAY_SHARE
    books = Books(
        state=state,
        usage=Usage.of(tree, state.placements.values()),
        tree=tree,
        shares=_shares(state, tree, pending),
        since_s=since_s,
        now_s=now_s,
        settings=settings,
        solver=TimedSolver(settings, clock_s, deadline_s),
        is_late=lambda: clock_s() >= early_s,
    )
    books, gone = repaired(books)
    evicted = [state.placements[name].gang for name in gone]
    round_ = _Round(books, lambda: clock_s() >= deadline_s)
    first = {gang.name for gang in pending if gang.name in lost}
    round_.go(sorted((gang for gang in pending if gang.name in first), key=in_queue))
    still_waiting = {gang.name: gang for gang in pending if gang.name not in round_.books.state.placements}
    books, left = claimed(round_.books, still_waiting, reservations or Reservations())
    round_.go_on_with(books)
    placed = round_.books.state.placements
    line = FairOrder(tree, books.shares, [gang for gang in pending if gang.name not in first | placed.keys()])
    round_.go(iter(lambda: line.next(round_.books.usage), None))
    books = grown(round_.books)
    waiting = {name: each for name, each in round_.waiting.items() if name not in books.state.placements}
    for gang in (*evicted, *(p.gang for p in state.placements.values())):
        if gang.name not in books.state.placements:
            waiting[gang.name] = _evicted(gang, books.why.get(gang.name))
    starving = [each.gang for each in waiting.values() if each.reason in _CAPACITY]
    left = next_in_line(books, starving, left)
    still = frozenset(name for name in (*gone, *first) if name in waiting)
    actions = actions_between(state.placements, books.state.placements, books.why)
    return CycleResult(books.state, actions, waiting, books.shares, left, still)


class _Round:
    """Waiting gangs one after another. What did not fit will not fit for an equal gang either, until something that
    was held is given up: placing only makes less room."""

    def __init__(self, books: Books, is_over: Callable[[], bool]) -> None:
        self.books = books
        self.waiting: dict[str, Unplaced] = {}
        self._is_over = is_over
        self._misfits: dict[str, Unplaced] = {}
        self._answers: dict[tuple[str, str, int, bool], Unplaced] = {}
        """Of gangs that are alike in all that counts: none of them needs a look of its own."""
        self._in_vain: set[tuple[str, str, int, bool]] = set()

    def go_on_with(self, books: Books) -> None:
        """Somebody else may have made room meanwhile, so nothing is known any more."""
        self.books = books
        self._misfits.clear()
        self._answers.clear()
        self._in_vain.clear()

    def go(self, gangs: Iterable[Gang]) -> None:
        for gang in gangs:
            answer = self._turn(gang)
            if answer is not None:
                self.waiting[gang.name] = answer

    def _turn(self, gang: Gang) -> Unplaced | None:
        books = self.books
        if self._is_over():
            text = "the time of the cycle was spent before it was its turn"
            return Unplaced(gang, Reason.INSUFFICIENT_CAPACITY, text, proved=False)
        kind = (gang.shape, gang.queue, gang.priority, gang.preemptible)
        if kind in self._answers:
            return replace(self._answers[kind], gang=gang)
        refusal = books.usage.refusal(gang, floor_of(gang), firm_part(gang))
        if refusal is not None:
            answer = Unplaced(gang, Reason.QUOTA_EXCEEDED, refusal)
        elif gang.shape in self._misfits:
            answer = replace(self._misfits[gang.shape], gang=gang)
        else:
            found = books.try_place(gang)
            if not isinstance(found, Unplaced):
                self.books = books.placed(found, Why(Cause.WAITING))
                return None
            answer = found
            if found.proved:
                self._misfits[gang.shape] = found
        way = None
        if answer.reason is not Reason.NODE_UNFIT and kind not in self._in_vain:
            way = given_way(books, gang)
        if way is None:
            self._in_vain.add(kind)
            if answer.proved:
                self._answers[kind] = answer
            return answer
        self.go_on_with(way)
        return None


def capacity(state: ClusterState) -> Amounts:
    """What gangs could hold together on nodes that are up: all but what the pods of others have."""
    total: Amounts = (
        int(np.sum(state.gpu_free_milli[state.up])),
        int(np.sum(state.cpu_free_milli[state.up])),
        int(np.sum(state.memory_free_bytes[state.up])),
    )
    for placement in state.placements.values():
        total = plus(total, held_by(placement))
    return total


def _shares(state: ClusterState, tree: QueueTree, pending: Iterable[Gang]) -> dict[str, Amounts]:
    asked: dict[str, Amounts] = {}
    for gang in (*pending, *(placement.gang for placement in state.placements.values())):
        asked[gang.queue] = plus(asked.get(gang.queue, NONE), wish_of(gang))
    return fair_shares(tree, capacity(state), asked)


def _evicted(gang: Gang, why: Why | None) -> Unplaced:
    if why is not None and why.cause is Cause.NODE_LOST:
        text = "nodes that it was on are lost, and what it lacks has no other place; it goes first from now on"
    elif why is not None and why.in_favour_of:
        text = f"it gave way to {why.in_favour_of} ({why.cause.value}), and has no other place"
    else:
        text = "it gave way, and has no other place"
    return Unplaced(gang, Reason.INSUFFICIENT_CAPACITY, text)


def _check(state: ClusterState, pending: Sequence[Gang], since_s: Mapping[str, float]) -> None:
    names: set[str] = set()
    for gang in pending:
        if gang.name in state.placements:
            raise PlacementError(f"gang {gang.name} waits, and has a place already; release it first")
        if gang.name in names:
            raise PlacementError(f"gang {gang.name} waits twice; every gang needs a name of its own")
        names.add(gang.name)
    for name in state.placements:
        if name not in since_s:
            raise PlacementError(f"gang {name} has a place, but since_s does not say since when")
