"""ProbeMemory: memory that a probe lets the other side read, and reads of it, by the back ends of real transfers."""

from __future__ import annotations

import asyncio
import threading
from typing import Protocol

from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.memory import BlockMemory, Neighbour, ShareOffer
from pointsman.edge.transfer.messages import NixlOffer
from pointsman.edge.transfer.negotiation import NIXL, SHM
from pointsman.edge.transfer.nixl_agent import NixlAgent
from pointsman.edge.transfer.probe.messages import UNIT_BYTES

_BLOCKS = 512
"""32 MiB, more than a cache of a processor's core."""
_LAYOUT = BlockLayout("pointsman-probe", "|u1", 1, 1, UNIT_BYTES // 128, 64)
_READ_LIMIT_S = 30.0


class Reader(Protocol):
    """Of the other side's memory."""

    async def read(self, size_bytes: int) -> None:
        """So many bytes, rounded up to whole units. Raises TransferError."""
        ...


class ProbeMemory:
    """Of one probe. Close it."""

    def __init__(self, transport: str) -> None:
        """Raises TransferError where that transport does not work here."""
        self._memory = BlockMemory(_LAYOUT, _BLOCKS, shared=transport == SHM)
        self._memory.array[:] = 1  # pages that nobody wrote to are not there, and are read in no time
        self._agent = NixlAgent(self._memory, staging_bytes=_BLOCKS * UNIT_BYTES) if transport == NIXL else None
        self._neighbour: Neighbour | None = None

    @property
    def share(self) -> ShareOffer | None:
        """For a neighbour."""
        return self._memory.offer

    @property
    def nixl(self) -> NixlOffer | None:
        """For a NIXL agent."""
        return None if self._agent is None else self._agent.offer

    def reader(self, share: ShareOffer | None, nixl: NixlOffer | None) -> Reader:
        """Of what the other side offers; open until this is closed. Raises TransferError where it can't be read."""
        if self._agent is not None and nixl is not None:
            return _NixlReader(self._agent, nixl)
        assert share is not None
        self._neighbour = Neighbour(share, _LAYOUT)
        return _SharedReader(self._neighbour, self._memory)

    async def close(self) -> None:
        """Let go of all."""
        if self._neighbour is not None:
            self._neighbour.__exit__(None, None, None)
        if self._agent is not None:
            await asyncio.get_running_loop().run_in_executor(self._agent.thread, self._agent.close)
            self._agent.thread.shutdown()
        self._memory.close()


def blocks_of(size_bytes: int) -> int:
    """Units that hold so many bytes."""
    return -(-size_bytes // UNIT_BYTES)


class _SharedReader:
    def __init__(self, neighbour: Neighbour, into: BlockMemory) -> None:
        self._neighbour = neighbour
        self._into = into
        self._copying = threading.Lock()
        """Held for one block's time."""
        self._stopped = False

    async def read(self, size_bytes: int) -> None:
        try:
            await asyncio.to_thread(self._copy, blocks_of(size_bytes))
        except asyncio.CancelledError:
            with self._copying:  # memory that a thread still reads must not be given back
                self._stopped = True
            raise

    def _copy(self, blocks: int) -> None:
        for number in range(blocks):
            place = number % _BLOCKS
            with self._copying:
                if self._stopped:
                    return
                self._neighbour.copy_block(place, self._into.bytes_of(place))


class _NixlReader:
    def __init__(self, agent: NixlAgent, offer: NixlOffer) -> None:
        self._agent = agent
        self._offer = offer

    async def read(self, size_bytes: int) -> None:
        loop = asyncio.get_running_loop()
        left = blocks_of(size_bytes)
        while left > 0:
            numbers = range(min(left, self._agent.blocks_a_read, _BLOCKS))
            await loop.run_in_executor(self._agent.thread, self._agent.read, self._offer, numbers, _READ_LIMIT_S)
            left -= len(numbers)
