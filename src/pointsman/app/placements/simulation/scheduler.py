"""Schedulers that a simulated cluster can be run with: what they are told, and what they answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.queues.actions import Why
from pointsman.core.placement.queues.books import Settings
from pointsman.core.placement.queues.cycle import cycle
from pointsman.core.placement.queues.reservation import Reservations
from pointsman.core.placement.queues.tree import SINGLE_QUEUE, QueueTree
from pointsman.core.placement.state import ClusterState

_STEP_S = 0.0002
"""What one step of a search counts, about what it takes."""


@dataclass(frozen=True)
class Look:
    """What a scheduler sees."""

    state: ClusterState
    """With everything that is held; nodes that failed are not ready."""
    waiting: Sequence[Gang]
    """Gangs that hold nothing, or less than their floors."""
    since_s: Mapping[str, float]
    """Of gangs that hold something: since when, or since their last move."""
    now_s: float


@dataclass(frozen=True)
class Decided:
    """What a scheduler makes of it."""

    state: ClusterState
    why: Mapping[str, Why] = field(default_factory=lambda: MappingProxyType({}))
    """Of gangs that hold something else than before."""


class Scheduler(Protocol):
    """May remember things between looks; a new one is made for every run."""

    def look(self, look: Look) -> Decided:
        """Decide at one moment."""


class GangScheduler:
    """Ours: the cycle of queues, whole gangs only.

    Budgets of a search are counted in steps of the search, not in time: the same on every machine, and a deployment
    that would be searched for ever is not. A cycle has no budget: what it searches is bounded by the kinds of gangs.
    """

    def __init__(self, tree: QueueTree = SINGLE_QUEUE, settings: Settings | None = None) -> None:
        self._tree = tree
        self._settings = replace(settings or Settings(), cycle_budget_s=math.inf)
        self._steps = itertools.count()
        self._reservations = Reservations()
        self._lost: frozenset[str] = frozenset()

    def look(self, look: Look) -> Decided:
        """One cycle. Its result depends on nothing but what it was told, now and before."""
        result = cycle(
            look.state,
            look.waiting,
            look.since_s,
            look.now_s,
            clock_s=lambda: next(self._steps) * _STEP_S,
            tree=self._tree,
            settings=self._settings,
            reservations=self._reservations,
            lost=self._lost,
        )
        self._reservations, self._lost = result.reservations, result.lost
        return Decided(result.state, {action.gang: action.why for action in result.actions})
