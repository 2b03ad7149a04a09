"""Transfers through a proxy that breaks them: cut anywhere, flip bits, go silent; and leases that end midway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.framing import Wire
from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.messages import Answer, Ask
from pointsman.edge.transfer.server import TransferServer
from support.scripted_server import closed, served
from support.transfers import LAYOUT, TOKEN, Source, Target, client, serving
from support.virtual_time import run_virtually

Change = Callable[[int, bytes], bytes | None]
"""Number of the connection, what the source sends on it → what arrives; None: cut after what came before."""


@contextlib.asynccontextmanager
async def behind(port: int, change: Change, piece: int = 4096) -> AsyncIterator[int]:
    count = 0

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(piece):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        number = count
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        upstream = asyncio.create_task(forward(reader, forth))
        try:
            with contextlib.suppress(ConnectionError):
                while data := await back.read(piece):
                    changed = change(number, data)
                    if changed is None:
                        break
                    writer.write(changed)
                    await writer.drain()
        finally:
            upstream.cancel()
            await asyncio.gather(upstream, return_exceptions=True)
            await closed(forth)

    async with served(serve) as own_port:
        yield own_port


class Cuts:
    """Each connection ends after so many bytes; the last one stays."""

    def __init__(self, after: list[int]) -> None:
        self.left = dict(enumerate(after, 1))

    def __call__(self, number: int, data: bytes) -> bytes | None:
        if number not in self.left:
            return data
        self.left[number] -= len(data)
        return data if self.left[number] >= 0 else None


@given(after=st.lists(st.integers(0, 45_000), max_size=3), piece=st.sampled_from([97, 1500, 65536]))
@settings(max_examples=25)
def test_a_transfer_goes_on_where_it_broke_off(after: list[int], piece: int) -> None:
    async def run() -> None:
        source, target = Source(), Target()
        async with serving(source) as server, behind(server.port, Cuts(after), piece) as port:
            report = await client("tcp", most_resumed=3).read(source.peer(port), source.wanted, target.put)
        assert target.equals(source)
        assert report.resumed <= len(after)
        assert report.bytes == len(source.wanted) * LAYOUT.block_bytes

    asyncio.run(run())


async def test_blocks_that_came_are_not_sent_again() -> None:
    source, target = Source(), Target()
    async with serving(source) as server, behind(server.port, Cuts([30_000])) as port:
        report = await client("tcp").read(source.peer(port), source.wanted, target.put)
    assert report.resumed == 1
    assert target.equals(source)
    assert report.wire_bytes <= report.bytes + 2 * LAYOUT.block_bytes


async def test_a_source_that_breaks_off_each_time_is_given_up_and_what_came_is_right() -> None:
    source, target = Source(), Target()
    async with serving(source) as server, behind(server.port, Cuts([9_000] * 9)) as port:
        with pytest.raises(TransferError, match=r"broke off.*2 further tries") as failed:
            await client("tcp", most_resumed=2).read(source.peer(port), source.wanted, target.put)
    assert failed.value.failure is Failure.BROKEN
    assert 0 < len(target.got) < len(source.wanted)
    for place, block in target.got.items():
        assert (block == source.memory.array[source.wanted[place].number]).all()


def flips(source: Source, times: int) -> Change:
    """One bit within the contents of the sixth block, in whatever pieces they come, each time they come."""
    contents = bytes(source.memory.bytes_of(source.wanted[5].number))
    before, seen = contents[: len(contents) // 2], 0
    held = b""

    def change(number: int, data: bytes) -> bytes:
        nonlocal held, seen
        joined = held + data
        at = joined.find(before) + len(before) - 1 - len(held)
        found = before in joined and seen < times
        held = joined[-(len(before) - 1) :]
        if not found:
            return data
        seen += 1
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return change


async def test_a_wrong_checksum_is_asked_for_again() -> None:
    source, target = Source(), Target()
    async with serving(source) as server, behind(server.port, flips(source, 1), 1500) as port:
        report = await client("tcp").read(source.peer(port), source.wanted, target.put)
    assert target.equals(source)
    assert report.repeated == 1
    assert report.wire_bytes == report.bytes + LAYOUT.block_bytes


async def test_checksums_that_stay_wrong_fail() -> None:
    source, target = Source(), Target()
    async with serving(source) as server, behind(server.port, flips(source, 99), 1500) as port:
        with pytest.raises(TransferError, match="1 blocks of P came 3 times with a wrong checksum") as failed:
            await client("tcp").read(source.peer(port), source.wanted, target.put)
    assert failed.value.failure is Failure.CORRUPT
    assert len(target.got) == len(source.wanted) - 1


async def test_memory_that_is_written_to_while_it_is_read_is_read_again() -> None:
    source, target = Source(), Target()
    source.wanted = source.wanted[:4]
    array = source.memory.array

    def put(place: int, contents: np.ndarray[Any, Any]) -> None:
        target.put(place, contents)
        if place < 3:
            array[4] += 1

    async with serving(source) as server:
        report = await client("shm").read(source.peer(server.port), source.wanted, put)
    assert report.repeated == 1
    assert target.equals(source)


async def test_a_source_that_goes_silent_is_given_up() -> None:
    source = Source()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with served(silent) as port:
        with pytest.raises(TransferError, match=r"sent nothing for 0\.02 s") as failed:
            await client("tcp", idle_s=0.02, most_resumed=1).read(source.peer(port), source.wanted, Target().put)
    assert failed.value.failure is Failure.TIMED_OUT


BIG = BlockLayout("model", "<f4", 15, 3, 16, 64)
"""All blocks of it are more than sockets hold."""


@pytest.mark.parametrize("codec", ["none", "f16"])
async def test_a_lease_that_ends_midway_ends_the_transfer(codec: str) -> None:
    source, target = Source(BIG), Target()
    async with serving(source) as server:

        def put(place: int, contents: np.ndarray[Any, Any]) -> None:
            target.put(place, contents)
            if place == 1:
                source.grant.release()

        reads = client("tcp", layout=BIG, most_resumed=1, codec_for=lambda peer, size: codec)
        with pytest.raises(TransferError, match="broke off") as failed:
            await reads.read(source.peer(server.port), source.wanted, put)
    assert failed.value.failure is Failure.BROKEN
    assert 2 <= len(target.got) < len(source.wanted)


async def test_who_was_granted_something_and_says_nothing_more_is_cut_off() -> None:
    source = Source()
    async with serving(source, idle_s=0.02) as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        await wire.send_message(Ask(TOKEN, "renew"))
        await wire.receive_message(Answer)
        with pytest.raises(EOFError):
            await wire.receive_message(Answer)
        wire.close()
        assert server.strangers == 0


async def test_who_asks_and_does_not_read_is_cut_off() -> None:
    source = Source(BIG)
    async with serving(source, idle_s=0.02) as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        blocks = tuple(source.grant.blocks)
        await wire.send_message(Ask(TOKEN, "read", layout=BIG, blocks=blocks, transports=("tcp",)))
        await wire.receive_message(Answer)
        while server.connections:
            await asyncio.sleep(0.005)
        wire.close()


def test_a_slow_link_takes_its_time_over_a_large_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        source, target = Source(BIG), Target()
        mine, slow, its, far = (*socket.socketpair(), *socket.socketpair())
        for end in (mine, slow, its, far):
            end.setblocking(False)

        async def back() -> None:
            while data := await loop.sock_recv(its, 4096):
                await asyncio.sleep(0.5)
                await loop.sock_sendall(slow, data)

        async def forth() -> None:
            while data := await loop.sock_recv(slow, 4096):
                await loop.sock_sendall(its, data)

        async def connect(host: str, port: int) -> Wire:
            return Wire(mine)

        monkeypatch.setattr(Wire, "connect", connect)
        server = TransferServer(source.memory, source.grant, ("tcp",))
        tasks = [asyncio.create_task(work) for work in (server._serve(far), back(), forth())]
        source.wanted = source.wanted[:2]
        report = await client("tcp", layout=BIG, idle_s=2.0, most_resumed=0).read(
            source.peer(1), source.wanted, target.put
        )
        assert target.equals(source)
        assert loop.time() - 1_000 > 2 * BIG.block_bytes / 4096 * 0.5
        assert source.grant.extended > 1 + len(source.wanted)  # also within a block
        assert report.resumed == 0
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for end in (slow, its):
            end.close()

    run_virtually(run())
