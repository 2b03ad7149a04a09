from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pointsman.edge.transfer.blocks import BlockName, Peer
from pointsman.edge.transfer.client import TransferClient
from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.memory import BlockMemory
from pointsman.edge.transfer.server import TransferServer

LAYOUT = BlockLayout("model", "<f4", 2, 2, 4, 8)
TOKEN = "right"
BLOCKS = 40


class OneGrant:
    """All blocks of a memory, for whoever has the token."""

    def __init__(self, blocks: int) -> None:
        self.alive = True
        self.extended = 0
        self.blocks: Mapping[int, BlockName] = {n: BlockName(n, 1_000 + n, 4) for n in range(1, blocks)}

    def extend(self) -> None:
        self.extended += 1

    def release(self) -> None:
        self.alive = False

    def grant(self, token: str) -> OneGrant | None:
        return self if token == TOKEN and self.alive else None


class Source:
    """An engine that gives blocks."""

    def __init__(self, layout: BlockLayout = LAYOUT, *, shared: bool = True) -> None:
        self.memory = BlockMemory(layout, BLOCKS, shared=shared)
        random = np.random.default_rng(1)
        self.memory.array[:] = random.standard_normal(self.memory.array.shape).astype(np.float32)
        self.grant = OneGrant(BLOCKS)
        self.wanted = list(self.grant.blocks.values())

    def peer(self, port: int, token: str = TOKEN) -> Peer:
        return Peer("P", "127.0.0.1", port, token)


class Target:
    """Takes what comes."""

    def __init__(self) -> None:
        self.got: dict[int, NDArray[Any]] = {}

    def put(self, place: int, contents: NDArray[Any]) -> None:
        assert place not in self.got
        self.got[place] = contents.copy()

    def equals(self, source: Source) -> bool:
        return all(
            (self.got[place].view(np.uint8) == source.memory.array[name.number].view(np.uint8)).all()
            for place, name in enumerate(source.wanted)
        )


@contextlib.asynccontextmanager
async def serving(
    source: Source, transports: tuple[str, ...] = ("shm", "tcp"), **more: Any
) -> AsyncIterator[TransferServer]:
    server = TransferServer(source.memory, source.grant, transports, **more)
    await server.start("127.0.0.1", 0)
    try:
        async with asyncio.timeout(20):
            yield server
    finally:
        await server.close()


def client(*transports: str, layout: BlockLayout = LAYOUT, **more: Any) -> TransferClient:
    return TransferClient("D", layout, transports or ("tcp",), pause_s=0.0, **more)
