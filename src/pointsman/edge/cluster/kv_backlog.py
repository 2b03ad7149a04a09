"""KvBacklog: batches that came and were not looked at yet, of bounded size."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_OVERHEAD_BYTES = 300
"""Of a batch in memory beside its payload."""


class Waiting(NamedTuple):
    """A batch that waits."""

    seq: int
    payload: bytes
    came_s: float


class KvBacklog:
    """First in, first out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: deque[Waiting] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """True if more waits than may."""
        return self._bytes > self._max_bytes

    @property
    def oldest_s(self) -> float | None:
        """When the one came that waits longest."""
        return self._waiting[0].came_s if self._waiting else None

    def add(self, seq: int, payload: bytes, came_s: float) -> None:
        """Wait, whether that is too much or not."""
        self._waiting.append(Waiting(seq, payload, came_s))
        self._bytes += len(payload) + _OVERHEAD_BYTES

    def pop(self) -> Waiting:
        """The next one. IndexError: none waits."""
        first = self._waiting.popleft()
        self._bytes -= len(first.payload) + _OVERHEAD_BYTES
        return first

    def drop(self) -> int:
        """Let go of all but the last one, whose number shows that others are missing. Returns how many went."""
        dropped = max(0, len(self._waiting) - 1)
        for _ in range(dropped):
            self.pop()
        return dropped
