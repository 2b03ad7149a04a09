from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pointsman.edge.transfer.blocks import BlockName, Peer
from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.framing import MAGIC, Wire
from pointsman.edge.transfer.layout import BlockLayout
from pointsman.edge.transfer.messages import Answer, Ask, NixlOffer
from support.log_lines import own_lines
from support.transfers import LAYOUT, TOKEN, Source, Target, client, serving


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_blocks_arrive_bit_by_bit(transport: str) -> None:
    source, target = Source(), Target()
    async with serving(source) as server:
        report = await client(transport).read(source.peer(server.port), source.wanted, target.put)
    assert target.equals(source)
    assert (report.transport, report.codec, report.resumed, report.repeated) == (transport, "none", 0, 0)
    assert report.bytes == report.wire_bytes == len(source.wanted) * LAYOUT.block_bytes
    assert 0 < report.first_byte_ms <= report.ms
    assert (report.source, report.target) == ("P", "D")
    assert server.sent_bytes == (report.bytes if transport == "tcp" else 0)


async def test_blocks_larger_than_all_buffers_arrive() -> None:
    layout = BlockLayout("model", "<f4", 30, 3, 16, 64)
    source, target = Source(layout), Target()
    async with serving(source) as server:
        await client("tcp", layout=layout).read(source.peer(server.port), source.wanted, target.put)
    assert target.equals(source)


async def test_only_what_is_asked_for_comes_in_the_order_asked_for() -> None:
    source, target = Source(), Target()
    source.wanted = [source.wanted[7], source.wanted[2]]
    async with serving(source) as server:
        await client().read(source.peer(server.port), source.wanted, target.put)
    assert list(target.got) == [0, 1]
    assert target.equals(source)


async def test_the_best_way_that_both_sides_can_is_taken() -> None:
    source, target = Source(), Target()
    async with serving(source) as server:
        report = await client("nixl", "shm", "tcp").read(source.peer(server.port), source.wanted, target.put)
    assert report.transport == "shm"
    source, target = Source(shared=False), Target()
    async with serving(source) as server:
        report = await client("shm", "tcp").read(source.peer(server.port), source.wanted, target.put)
        assert report.transport == "tcp"
        with pytest.raises(TransferError, match="no common transport: shm asked for, tcp here") as refused:
            await client("shm").read(source.peer(server.port), source.wanted, target.put)
    assert refused.value.failure is Failure.REFUSED


async def test_memory_that_can_not_be_opened_from_here_is_no_reason_to_fail() -> None:
    source, target = Source(), Target()
    offer = source.memory.offer
    assert offer is not None
    source.memory.offer = type(offer)(offer.pid, offer.descriptor, offer.bytes, "00" * 32)
    async with serving(source) as server:
        report = await client("shm", "tcp").read(source.peer(server.port), source.wanted, target.put)
        assert report.transport == "tcp"
        assert target.equals(source)
        with pytest.raises(TransferError, match="not the one that was meant"):
            await client("shm").read(source.peer(server.port), source.wanted, Target().put)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<4sI", MAGIC, 1 << 30),
        struct.pack("<4sI", MAGIC, 2) + b"{}",
        struct.pack("<4sI", MAGIC, 40) + b'{"token":"wrong","do":"read","blocks":[]',
        b'PKV1\x20\x00\x00\x00{"token":"guess","do":"release"}',
        b"",
    ],
)
async def test_strangers_hear_nothing(said: bytes) -> None:
    source = Source()
    async with serving(source, first_word_s=0.05) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(said)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert server.strangers == 1
        assert source.grant.alive


async def test_a_client_with_a_wrong_token_fails_soon() -> None:
    source = Source()
    async with serving(source) as server:
        with pytest.raises(TransferError, match="broke off") as failed:
            await client(most_resumed=1).read(source.peer(server.port, "guess"), source.wanted, Target().put)
    assert failed.value.failure is Failure.BROKEN


async def test_blocks_that_were_not_granted_are_refused() -> None:
    source = Source()
    async with serving(source) as server:
        with pytest.raises(TransferError, match="block 0 was not granted"):
            await client().read(source.peer(server.port), [BlockName(0, 1, 4)], Target().put)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other"}, "fingerprint differs: model here, other there"),
        ({"block_tokens": 8}, "block_tokens differs: 4 here, 8 there"),
        ({"dtype": "<f2"}, "dtype differs"),
        ({"kv_heads": 4}, "kv_heads differs"),
    ],
)
async def test_other_layouts_are_refused_with_the_reason(change: dict[str, object], said: str) -> None:
    source = Source()
    values = {name: getattr(LAYOUT, name) for name in LAYOUT.__struct_fields__}
    layout = BlockLayout(**(values | change))  # type: ignore[arg-type]
    async with serving(source) as server:
        with pytest.raises(TransferError, match=said) as failed:
            await client(layout=layout).read(source.peer(server.port), source.wanted, Target().put)
    assert failed.value.failure is Failure.REFUSED


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_blocks_of_other_tokens_are_never_handed_on(transport: str) -> None:
    source, target = Source(), Target()
    source.wanted[5] = BlockName(source.wanted[5].number, 77, 4)
    async with serving(source) as server:
        with pytest.raises(TransferError, match="holds other tokens") as failed:
            await client(transport).read(source.peer(server.port), source.wanted, target.put)
    assert failed.value.failure is Failure.CORRUPT
    assert list(target.got) == [0, 1, 2, 3, 4]


async def test_blocks_with_fewer_tokens_than_wanted_are_never_handed_on() -> None:
    source, target = Source(), Target()
    source.wanted = [BlockName(1, 1_001, 5)]
    async with serving(source) as server:
        with pytest.raises(TransferError, match="holds other tokens"):
            await client().read(source.peer(server.port), source.wanted, target.put)
    assert not target.got


async def test_release_ends_a_lease_and_renew_extends_it() -> None:
    source = Source()
    async with serving(source) as server:
        reads = client()
        assert await reads.renew(source.peer(server.port))
        assert source.grant.extended == 1
        assert not await reads.renew(source.peer(server.port, "guess"))
        assert await reads.release(source.peer(server.port))
        assert not source.grant.alive
        assert not await reads.release(source.peer(server.port))


async def test_what_puts_blocks_into_their_places_can_stop_the_transfer() -> None:
    source = Source()

    class GoneError(Exception):
        pass

    def put(place: int, contents: object) -> None:
        if place == 3:
            raise GoneError

    async with serving(source) as server:
        with pytest.raises(GoneError):
            await client().read(source.peer(server.port), source.wanted, put)


async def test_connections_that_are_too_many_wait() -> None:
    source, target = Source(), Target()
    async with serving(source, most_connections=1) as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        await wire.send_message(Ask(TOKEN, "renew"))
        await wire.receive_message(Answer)
        reading = asyncio.create_task(client(most_resumed=0).read(source.peer(server.port), source.wanted, target.put))
        await asyncio.wait([reading], timeout=0.1)
        assert not reading.done()
        assert server.connections == 1
        wire.close()
        report = await reading
        assert (report.resumed, target.equals(source)) == (0, True)
        # What one says who did not wait for his turn is heard all the same.
        wire = await Wire.connect("127.0.0.1", server.port)
        await wire.send_message(Ask(TOKEN, "renew"))
        await wire.receive_message(Answer)
        hasty = await Wire.connect("127.0.0.1", server.port)
        await hasty.send_message(Ask(TOKEN, "release"))
        hasty.close()
        assert source.grant.alive
        wire.close()
        while source.grant.alive:
            await asyncio.sleep(0.005)


async def test_nobody_there_is_said_after_some_tries() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(TransferError, match="no connection to P") as failed:
            await client(most_resumed=2).read(
                Peer("P", "127.0.0.1", taken.getsockname()[1], TOKEN), Source().wanted, Target().put
            )
    assert failed.value.failure is Failure.UNREACHABLE


async def test_another_protocol_is_refused() -> None:
    source = Source()
    async with serving(source) as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        await wire.send_message(Ask(TOKEN, "renew", protocol=9))
        assert (await wire.receive_message(Answer)).error == "protocol 9 is not known: 1 is"
        wire.close()


@pytest.mark.parametrize("codec", ["zstd", "f16", "int8"])
async def test_codecs_work_over_tcp_and_are_not_used_over_memory(codec: str) -> None:
    source, target = Source(), Target()
    async with serving(source) as server:
        coded = client("tcp", codec_for=lambda peer, size: codec)
        report = await coded.read(source.peer(server.port), source.wanted, target.put)
        assert report.codec == codec
        assert report.wire_bytes < report.bytes
        assert target.equals(source) == (codec == "zstd")
        close = np.stack([target.got[n] for n in range(len(source.wanted))])
        assert np.abs(close - source.memory.array[1:]).max() < 0.05
        shared = client("shm", codec_for=lambda peer, size: codec)
        report = await shared.read(source.peer(server.port), source.wanted, Target().put)
        assert (report.codec, report.wire_bytes) == ("none", report.bytes)


async def test_a_codec_that_the_source_does_not_know_is_not_used_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()
    async with serving(source) as server:
        unknown = client("tcp", codec_for=lambda peer, size: "lz9")
        for _ in range(2):
            target = Target()
            report = await unknown.read(source.peer(server.port), source.wanted, target.put)
            assert (report.codec, report.wire_bytes, target.equals(source)) == ("none", report.bytes, True)
    assert [line for line in own_lines(caplog) if "codec" in line] == [
        "KV from P comes with codec none: lz9 is not known there"
    ]


class BrokenNixl:
    """An agent whose link does not work."""

    blocks_a_read = 8

    def __init__(self) -> None:
        self.tries = 0
        self.thread = ThreadPoolExecutor(1)

    def read(self, offer: NixlOffer, numbers: list[int], timeout_s: float) -> None:
        self.tries += 1
        raise TransferError(Failure.BROKEN, "NIXL ended in state ERR")


async def test_nixl_that_does_not_work_between_two_engines_is_no_reason_to_move_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, agent = Source(), BrokenNixl()
    async with serving(source, ("nixl", "tcp"), nixl=NixlOffer(b"", 0)) as server:
        both: Any = client("nixl", "tcp", nixl=agent)
        for _ in range(2):
            target = Target()
            report = await both.read(source.peer(server.port), source.wanted, target.put)
            assert (report.transport, target.equals(source)) == ("tcp", True)
        assert agent.tries == 1
        with pytest.raises(TransferError, match="state ERR") as failed:
            await client("nixl", nixl=agent).read(source.peer(server.port), source.wanted, Target().put)
        assert failed.value.failure is Failure.BROKEN
    assert own_lines(caplog) == ["KV from P goes another way than nixl: NIXL ended in state ERR"]
    agent.thread.shutdown()


async def test_what_lies_where_memory_should_be_and_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    kept = os.open(tmp_path / "pipe", os.O_RDWR)
    only_read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.close(kept)
    source, target = Source(), Target()
    offer = source.memory.offer
    assert offer is not None
    source.memory.offer = type(offer)(os.getpid(), only_read, offer.bytes, offer.word)
    async with serving(source) as server:
        report = await client("shm", "tcp").read(source.peer(server.port), source.wanted, target.put)
    assert (report.transport, target.equals(source)) == ("tcp", True)
    os.close(only_read)
