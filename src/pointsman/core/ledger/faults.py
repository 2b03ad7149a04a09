"""FaultTally: how requests failed at a worker, for people: how often in which way, and the last time in words.

It decides nothing; health learns from the same faults. It outlives the worker's process: a restart is often the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.core.model.fault import Fault


@dataclass(frozen=True, slots=True)
class FaultSnapshot:
    """What a worker's requests failed of."""

    counts: dict[Fault, int]
    last: Fault | None
    """None: none has failed there."""
    reason: str
    at_ms: float


@dataclass(slots=True)
class FaultTally:
    """Of one worker, also in its earlier incarnations."""

    _counts: dict[Fault, int] = field(default_factory=dict)
    _last: Fault | None = None
    _reason: str = ""
    _at_ms: float = 0.0

    def add(self, fault: Fault, reason: str, at_ms: float) -> None:
        """A request failed there."""
        self._counts[fault] = self._counts.get(fault, 0) + 1
        self._last, self._reason, self._at_ms = fault, reason, at_ms

    def snapshot(self) -> FaultSnapshot:
        """As it stands."""
        return FaultSnapshot(dict(self._counts), self._last, self._reason, self._at_ms)
