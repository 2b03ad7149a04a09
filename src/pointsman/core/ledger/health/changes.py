"""Changes: what became of facts, kept until somebody fetches it for the log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from pointsman.core.ledger.events import CanaryResult
from pointsman.core.ledger.health.facts import Cause
from pointsman.core.model.worker import WorkerId

MOST_KEPT = 2_000


@dataclass(frozen=True, slots=True)
class HealthChange:
    """Something about a worker's health is otherwise now."""

    worker: WorkerId
    at_ms: float
    what: str
    """live, ready, serving; paused (it asked for that); kept (it would be left out, but too many are)."""
    state: str
    """yes, no or unknown."""
    lasted_ms: float
    """How long it was as it had been before."""
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class HealthCounts:
    """Counts that only grow, until a worker leaves for good."""

    changes: Mapping[tuple[WorkerId, str, str, Cause], int]
    """(worker, what, state, cause)."""
    canaries: Mapping[tuple[WorkerId, CanaryResult], int]
    changes_lost: int
    """That nobody took for the log before others pushed them out."""


class Changes:
    """Of all workers, in their order. Counts go on for ever, changes until they are taken."""

    def __init__(self) -> None:
        self._waiting: deque[HealthChange] = deque(maxlen=MOST_KEPT)
        self.counts: Counter[tuple[WorkerId, str, str, Cause]] = Counter()
        """(worker, what, state, cause) → changes."""
        self.lost = 0
        """That nobody took before others pushed them out."""

    def add(self, change: HealthChange) -> None:
        """One more."""
        self.lost += len(self._waiting) == MOST_KEPT
        self._waiting.append(change)
        self.counts[change.worker, change.what, change.state, change.cause] += 1

    def forget(self, worker: WorkerId) -> None:
        """The worker is gone for good: its counts are not shown any more."""
        for key in [key for key in self.counts if key[0] == worker]:
            del self.counts[key]

    def take(self) -> tuple[HealthChange, ...]:
        """Those since the last time."""
        taken = tuple(self._waiting)
        self._waiting.clear()
        return taken
