from __future__ import annotations

import asyncio
import dataclasses

import pytest

from pointsman.edge.transfer.blocks import Peer
from pointsman.edge.transfer.client import TransferClient
from support.scripted_server import served
from support.transfers import Source, Target, client, serving

AT_ONCE = 3


class Silent:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self.connections = 0
        self.most = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.most = max(self.most, self.connections)
        try:
            while await reader.read(65536):
                pass
        finally:
            self.connections -= 1
            writer.close()


async def read(reads: TransferClient, source: Source, peer: Peer) -> Target:
    target = Target()
    await reads.read(peer, source.wanted, target.put)
    return target


async def test_a_source_that_stands_still_holds_up_nobody_who_reads_from_another_one() -> None:
    silent, source = Silent(), Source()
    reads = client("tcp", most_at_once=AT_ONCE, idle_s=3600.0)
    async with serving(source) as server, served(silent) as port:
        stuck = [
            asyncio.create_task(read(reads, source, dataclasses.replace(source.peer(port), name="stopped")))
            for _ in range(2 * AT_ONCE)
        ]
        async with asyncio.timeout(10):
            while silent.connections < AT_ONCE:
                await asyncio.sleep(0.01)
        assert (await read(reads, source, source.peer(server.port))).equals(source)
        assert silent.most == AT_ONCE, "further ones wait for their turn"
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
    assert not reads._places
    assert not reads._readers


async def test_who_waits_for_a_source_comes_in_turn() -> None:
    source = Source()
    reads = client("tcp", most_at_once=1)
    async with serving(source) as server:
        got = await asyncio.gather(*(read(reads, source, source.peer(server.port)) for _ in range(5)))
    assert all(target.equals(source) for target in got)
    assert not reads._places


@pytest.mark.parametrize("cancelled", [0, 2])
async def test_whoever_leaves_the_queue_leaves_its_place(cancelled: int) -> None:
    silent, source = Silent(), Source()
    reads = client("tcp", most_at_once=1, idle_s=3600.0)
    async with served(silent) as port:
        tasks = [asyncio.create_task(read(reads, source, source.peer(port))) for _ in range(3)]
        async with asyncio.timeout(10):
            while not silent.connections:
                await asyncio.sleep(0.01)
            tasks[cancelled].cancel()
            await asyncio.wait([tasks[cancelled]])
            while not silent.connections:
                await asyncio.sleep(0.01)
        assert reads._readers == {"P": 2}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert not reads._readers
