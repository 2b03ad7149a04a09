"""A network between replicas in one process: late, lossy, doubling, parted, as a test wants it."""

from __future__ import annotations

import asyncio
import random

from pointsman.edge.cluster.replicas.message import ALL, address
from pointsman.edge.cluster.replicas.replica_bus import Received


class ReplicaNetwork:
    """Delays are random up to `most_delay_s`, so messages overtake each other unless it is 0."""

    def __init__(self, rng: random.Random, most_delay_s: float = 0.005) -> None:
        self.rng = rng
        self.most_delay_s = most_delay_s
        self.loss = 0.0
        self.doubling = 0.0
        self.parted: set[frozenset[int]] = set()
        """Pairs that don't hear each other."""
        self._ends: dict[int, MemoryTransport] = {}

    def transport(self) -> MemoryTransport:
        """Another end; they are numbered from 0 on."""
        number = len(self._ends)
        self._ends[number] = MemoryTransport(self, number)
        return self._ends[number]

    def carry(self, sender: int, frames: list[bytes]) -> None:
        """Deliver, or not, to everybody it is for."""
        loop = asyncio.get_running_loop()
        for number, end in self._ends.items():
            if number == sender or frozenset((sender, number)) in self.parted or self.rng.random() < self.loss:
                continue
            for _ in range(2 if self.rng.random() < self.doubling else 1):
                loop.call_later(self.rng.uniform(0.0, self.most_delay_s), end.take, frames)


class MemoryTransport:
    """One end of it."""

    def __init__(self, network: ReplicaNetwork, number: int) -> None:
        self._network = network
        self.number = number
        self._received: Received | None = None
        self._addresses: tuple[bytes, ...] = ()

    async def start(self, received: Received, replica: str) -> None:
        self._received, self._addresses = received, (ALL, address(replica))

    def send(self, frames: list[bytes]) -> bool:
        if self._received is not None:
            self._network.carry(self.number, frames)
        return self._received is not None

    def take(self, frames: list[bytes]) -> None:
        if self._received is not None and frames[0] in self._addresses:
            self._received(frames)

    def cut(self) -> None:
        """The process is gone."""
        self._received = None

    async def close(self) -> None:
        self._received = None
