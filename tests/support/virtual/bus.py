"""What carries messages between replicas in virtual time; it can be cut between any two."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

LATENCY_S = 0.001


class MemoryBusLine:
    """All replicas of a fleet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transports: list[MemoryTransport] = []
        self.cut: set[frozenset[int]] = set()
        """Pairs, by number, that do not hear each other."""

    def transport(self) -> MemoryTransport:
        """Of one more replica."""
        made = MemoryTransport(self, len(self.transports))
        self.transports.append(made)
        return made


class MemoryTransport:
    """As `replica_bus.Transport` wants it."""

    def __init__(self, line: MemoryBusLine, number: int) -> None:
        self.line, self.number = line, number
        self.received: Callable[[list[bytes]], None] | None = None
        self.coming: deque[list[bytes]] = deque()
        self.silent = False
        """A stopped or dead process neither sends nor hears."""

    async def start(self, received: Callable[[list[bytes]], None], replica: str) -> None:
        self.received = received

    def send(self, frames: list[bytes]) -> bool:
        if self.silent:
            return False
        for other in self.line.transports:
            if other is not self and frozenset((self.number, other.number)) not in self.line.cut:
                other.coming.append(list(frames))
                self.line.loop.call_later(LATENCY_S, other.take_next)
        return True

    def take_next(self) -> None:
        frames = self.coming.popleft()
        if self.received is not None and not self.silent:
            self.received(frames)

    async def close(self) -> None:
        self.received = None
