"""Probes over loopback; how fast that is, nobody asserts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pointsman.edge.transfer.errors import Failure, TransferError
from pointsman.edge.transfer.framing import Wire
from pointsman.edge.transfer.memory import Neighbour
from pointsman.edge.transfer.probe import client as probe_client
from pointsman.edge.transfer.probe.client import ProbeError, measure
from pointsman.edge.transfer.probe.memory import ProbeMemory
from pointsman.edge.transfer.probe.messages import Ask, LinkProbe, Reply
from pointsman.edge.transfer.probe.server import BusyError, ProbeLimits, ProbeServer, Slot
from support.waiting import eventually

KIB = 1 << 10
SIZES = (64 * KIB, 256 * KIB)
HOST = "this-one"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@contextlib.asynccontextmanager
async def serving(clock: Clock | None = None, **settings: Any) -> AsyncIterator[ProbeServer]:
    server = ProbeServer(Slot(clock or Clock()), host=HOST, **settings)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


async def probed(server: ProbeServer, port: int | None = None, **changes: Any) -> LinkProbe:
    wanted: dict[str, Any] = {"sizes_bytes": SIZES, "size_s": 10.0, "transports": ("shm", "tcp"), "own_host": HOST}
    return await measure("127.0.0.1", port or server.port, server.ticket(), **(wanted | changes))


@contextlib.asynccontextmanager
async def throttled(
    port: int, clock: Clock, *, bytes_per_s: float = 1e12, cut_after: int = 1 << 40
) -> AsyncIterator[int]:
    """A proxy that passes on so many bytes a second by that clock, which nothing else moves, and hangs up after so
    many."""
    passed = 0
    connections: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed
        while data := await reader.read(16 * KIB):
            clock.now_s += len(data) / bytes_per_s
            passed += len(data)
            if passed > cut_after:
                break
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        back, forth = await asyncio.open_connection("127.0.0.1", port, limit=16 * KIB)
        ways = [asyncio.create_task(pump(reader, forth)), asyncio.create_task(pump(back, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, forth):
                end.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=16 * KIB)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*connections, return_exceptions=True)


@pytest.mark.parametrize(("transports", "used"), [(("tcp",), "tcp"), (("shm", "tcp"), "shm"), (("tcp", "shm"), "shm")])
async def test_both_directions_are_measured_over_the_best_common_transport(
    transports: tuple[str, ...], used: str
) -> None:
    async with serving() as server:
        found = await probed(server, transports=transports)
    assert found.transport == used
    assert [sample.size_bytes for sample in found.forth] == [sample.size_bytes for sample in found.back] == list(SIZES)
    assert all(sample.took_ms > 0 and sample.count >= 1 for sample in (*found.forth, *found.back))
    assert found.round_trip_ms > 0
    assert found.interface is not None
    assert found.interface == found.peer_interface
    assert not found.broke
    assert not found.notes


async def test_memory_is_not_shared_with_another_host() -> None:
    async with serving() as server:
        found = await probed(server, own_host="another one")
    assert found.transport == "tcp"


@pytest.mark.parametrize("side", [0, 1])
async def test_memory_that_one_side_can_not_open_is_left_out_with_a_note(
    monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    calls = 0
    usual = ProbeMemory.reader

    def reader(self: ProbeMemory, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == side + 1:
            raise TransferError(Failure.LOCAL, "it is another container")
        return usual(self, *args)

    monkeypatch.setattr(ProbeMemory, "reader", reader)
    async with serving() as server:
        found = await probed(server)
    assert found.transport == "tcp"
    assert found.notes == ("shm was not used: it is another container",)
    assert found.back


async def test_a_transport_that_was_asked_for_alone_and_does_not_work_is_an_error() -> None:
    async with serving() as server:
        with pytest.raises(ProbeError, match="no common transport: nixl asked for, shm, tcp here"):
            await probed(server, transports=("nixl",))


async def test_sizes_that_would_take_too_long_are_cut_to_what_fits() -> None:
    clock = Clock()
    async with serving() as server, throttled(server.port, clock, bytes_per_s=4e6) as port:
        sizes = (16 * KIB, 64 << 20)
        found = await probed(server, port, transports=("tcp",), sizes_bytes=sizes, size_s=0.05, clock_s=clock)
    first, second = found.forth
    assert first.size_bytes == 16 * KIB
    assert 150_000 < second.size_bytes < 200_000
    assert len(found.notes) == 2
    assert "would have taken longer than 0.05 s" in found.notes[0]


@pytest.mark.parametrize("after", [100 * KIB, 900 * KIB])
async def test_what_breaks_off_in_the_middle_gives_what_was_measured_until_then(after: int) -> None:
    clock = Clock()
    async with serving() as server, throttled(server.port, clock, cut_after=after) as port:
        sizes = (16 * KIB, 8 << 20)
        found = await probed(server, port, transports=("tcp",), sizes_bytes=sizes, clock_s=clock)
        assert "broke off" in found.broke
        assert len(found.forth) <= 1
        assert not found.back
        await eventually(lambda: server.served == 1)
        server.ticket()  # the next one may come


async def test_nobody_there_is_told_plainly() -> None:
    async with serving() as server:
        port, ticket = server.port, server.ticket()
    with pytest.raises(ProbeError, match=f"no connection to 127.0.0.1:{port}: .*[Cc]onnect"):
        await measure("127.0.0.1", port, ticket)


async def test_a_port_that_something_on_the_way_keeps_shut_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(host: str, port: int) -> Wire:
        await asyncio.sleep(3600)
        raise AssertionError("unreachable")

    monkeypatch.setattr(Wire, "connect", silent)
    monkeypatch.setattr(probe_client, "_CONNECT_S", 0.01)
    with pytest.raises(ProbeError, match=r"no connection to 10\.0\.0\.1:8091 .* --probe-port"):
        await measure("10.0.0.1", 8091, "x")


async def test_strangers_get_nothing() -> None:
    async with serving() as server:
        ticket = server.ticket()
        with pytest.raises(ProbeError, match="broke off"):
            await measure("127.0.0.1", server.port, "f" * 32, sizes_bytes=SIZES)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        assert server.strangers == 2
        # The right one still holds, once.
        found = await measure("127.0.0.1", server.port, ticket, sizes_bytes=SIZES, size_s=0.01)
        assert not found.broke
        with pytest.raises(ProbeError):
            await measure("127.0.0.1", server.port, ticket, sizes_bytes=SIZES)


async def test_one_probe_at_a_time_and_a_ticket_that_nobody_uses_expires() -> None:
    clock = Clock()
    async with serving(clock, limits=ProbeLimits(ticket_s=10)) as server:
        server.ticket()
        with pytest.raises(BusyError, match="another probe is under way"):
            server.ticket()
        clock.now_s = 10.0
        server.ticket()


async def test_a_ticket_that_is_shown_too_late_does_not_disturb_who_came_after() -> None:
    clock = Clock()
    slot = Slot(clock)
    server = ProbeServer(slot, host=HOST, limits=ProbeLimits(ticket_s=10))
    await server.start("127.0.0.1", 0)
    try:
        ticket = server.ticket()
        clock.now_s = 10.0
        turn = slot.take(240)  # a probe from here
        with pytest.raises(ProbeError, match="broke off"):
            await measure("127.0.0.1", server.port, ticket, sizes_bytes=SIZES)
        assert slot.taken
        slot.leave(turn - 1)
        assert slot.taken
        slot.leave(turn)
        assert not slot.taken
    finally:
        await server.close()


async def test_the_smallest_size_is_cut_too_where_it_takes_too_long() -> None:
    clock = Clock()
    async with serving() as server, throttled(server.port, clock, bytes_per_s=4e6) as port:
        found = await probed(server, port, transports=("tcp",), sizes_bytes=(256 << 20,), size_s=0.1, clock_s=clock)
    assert not found.broke
    for samples in (found.forth, found.back):
        assert len(samples) == 1
        assert 300_000 < samples[0].size_bytes < 400_000
    assert any("would have taken longer" in note for note in found.notes)


async def test_a_probe_moves_no_more_than_it_may() -> None:
    async with serving(limits=ProbeLimits(most_bytes=200 * KIB)) as server:
        found = await probed(server, transports=("shm",), sizes_bytes=(64 * KIB,), size_s=10)
    assert "too many" in found.broke


async def test_words_of_another_version_and_in_the_wrong_order_are_refused() -> None:
    async with serving() as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        with contextlib.closing(wire):
            await wire.send_message(Ask("open", server.ticket(), protocol=7, transports=("tcp",)))
            assert "protocol 7" in (await wire.receive_message(Reply)).error
            await wire.send_message(Ask("mine"))
            assert "nothing was opened" in (await wire.receive_message(Reply)).error
            await wire.send_message(Ask("give", size_bytes=1 << 40))
            assert "too many" in (await wire.receive_message(Reply)).error
            await wire.send_message(Ask("open", transports=("shm",), host=HOST))
            assert not (await wire.receive_message(Reply)).error
            await wire.send_message(Ask("take", size_bytes=1))
            assert "was not opened" in (await wire.receive_message(Reply)).error


async def test_who_is_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_client, "_ANSWER_S", 0.05)

    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ProbeError, match=r"nothing came for 0\.05 s"):
        await measure("127.0.0.1", silent.getsockname()[1], "x")


async def test_a_read_of_shared_memory_that_is_given_up_ends_before_the_memory_goes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()
    caplog.clear()  # of what other tests have left behind
    one, other = ProbeMemory("shm"), ProbeMemory("shm")
    reader = one.reader(other.share, None)
    copied = 0
    copy = Neighbour.copy_block

    def counted(self: Neighbour, number: int, into: Any) -> Any:
        nonlocal copied
        copied += 1
        return copy(self, number, into)

    monkeypatch.setattr(Neighbour, "copy_block", counted)
    reading = asyncio.create_task(reader.read(1 << 40))
    await eventually(lambda: copied > 10)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    at_the_end = copied
    await one.close()
    await other.close()
    await asyncio.sleep(0.05)
    assert copied == at_the_end
    assert not caplog.records


async def test_a_server_that_closes_cuts_what_is_under_way() -> None:
    async with serving() as server:
        wire = await Wire.connect("127.0.0.1", server.port)
        await wire.send_message(Ask("open", server.ticket(), transports=("tcp",)))
        await wire.receive_message(Reply)
        await server.close()
        with contextlib.closing(wire), pytest.raises((EOFError, OSError)):
            await wire.receive_message(Reply)
