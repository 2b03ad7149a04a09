"""DecisionRing: the last decisions in memory, bounded in number and bytes, and those whose requests still run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pointsman.edge.decisions.record import DecisionRecord

MOST = 4_096
MOST_BYTES = 32 * 2**20


class DecisionRing:
    """Of one front end. Those that run are bounded by what is in flight, and kept until they end."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        """`most` = 0: nothing is kept."""
        self.most = most
        self.most_bytes = most_bytes
        self.bytes = 0
        """Of those that ended, about."""
        self.dropped = 0
        """That had to make room."""
        self._running: dict[str, DecisionRecord] = {}
        self._ended: deque[DecisionRecord] = deque()
        self._by_id: dict[str, DecisionRecord] = {}

    def begin(self, record: DecisionRecord) -> None:
        """It was decided."""
        if self.most:
            self._running[record.request.id] = record

    def end(self, record: DecisionRecord) -> None:
        """It ended and is concluded; older ones make room for it. One that is larger than the ring is not kept."""
        if not self.most:
            return
        self._running.pop(record.request.id, None)
        if record.size_bytes > self.most_bytes:
            self.dropped += 1
            return
        self._ended.append(record)
        self._by_id[record.request.id] = record
        self.bytes += record.size_bytes
        while len(self._ended) > self.most or self.bytes > self.most_bytes:
            oldest = self._ended.popleft()
            del self._by_id[oldest.request.id]
            self.bytes -= oldest.size_bytes
            self.dropped += 1

    def find(self, name: str) -> DecisionRecord | None:
        """By the request's id, or by what its client calls it; of several the youngest."""
        found = self._running.get(name) or self._by_id.get(name)
        if found is not None:
            return found
        client_id = name.encode("latin-1", "replace")
        return next((record for record in self if record.client_id == client_id), None)

    @property
    def running(self) -> int:
        """Decisions whose requests run."""
        return len(self._running)

    @property
    def kept(self) -> int:
        """Decisions whose requests ended."""
        return len(self._ended)

    @property
    def oldest(self) -> DecisionRecord | None:
        """Of those that ended: the one that goes next."""
        return self._ended[0] if self._ended else None

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Running ones, the last decided first, then those that ended, the last that ended first."""
        yield from reversed(self._running.values())
        yield from reversed(self._ended)
