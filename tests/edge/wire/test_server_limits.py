from __future__ import annotations

import asyncio
import json
import resource
import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from support.waiting import eventually

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def answer_ok(request, responder):
    responder.send(200, (), b"ok")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(200)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"y" * 300_000,
        b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 300_000,
    ],
    ids=["many", "large", "endless name", "endless value"],
)
async def test_header_flood(wire, head):
    server = await wire.serve(answer_ok, max_head_bytes=4096, max_headers=100)
    client = await wire.client(server.port)
    client.send(head)
    answer = await client.response()
    assert answer.status == 431
    assert "header" in json.loads(answer.body)["error"]["message"]


async def test_endless_target(wire):
    server = await wire.serve(answer_ok, max_head_bytes=4096)
    client = await wire.client(server.port)
    client.send(b"GET /" + b"a" * 300_000)
    assert (await client.response()).status == 414


async def test_trailer_flood(wire):
    server = await wire.serve(answer_ok, max_head_bytes=4096)
    client = await wire.client(server.port)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 300_000)
    assert (await client.response()).status == 431


async def test_body_too_large_by_its_length_is_refused_unread(wire):
    server = await wire.serve(answer_ok, max_body_bytes=1000)
    client = await wire.client(server.port)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n")
    answer = await client.response()
    assert answer.status == 413
    assert "1001" in json.loads(answer.body)["error"]["message"]


async def test_a_client_that_goes_on_sending_still_gets_its_413(wire):
    server = await wire.serve(answer_ok, max_body_bytes=1000)
    client = await wire.client(server.port)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
    assert (await client.response()).status == 413


async def test_chunked_body_too_large_while_it_grows(wire):
    server = await wire.serve(answer_ok, max_body_bytes=1000)
    client = await wire.client(server.port)
    client.send(
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"190\r\n%b\r\n" % (b"x" * 400) * 3
    )
    assert (await client.response()).status == 413


async def test_tiny_chunks_take_no_more_memory_than_their_bytes(offline):
    offline.connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    data = b"1\r\nx\r\n" * 5_000
    tracemalloc.start()
    for _ in range(40):
        offline.connection.data_received(data)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * 200_000 + 100_000


async def test_slow_head_gets_408(wire, time_passes):
    server = await wire.serve(answer_ok, head_timeout_s=30)
    client = await wire.client(server.port)
    client.send(GET[:20])
    await eventually(lambda: any(connection.busy for connection in server._connections))
    time_passes(server, 29)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.02)
    time_passes(server, 31)
    answer = await client.response()
    assert answer.status == 408
    assert "header" in json.loads(answer.body)["error"]["message"]


def test_dripping_head_does_not_extend_its_time(clocked):
    clocked.connection.data_received(b"GET / HTTP/1.1\r\n")
    while not clocked.transport.written and clocked.now_s < 1000:
        clocked.wait_s(1)
        clocked.connection.data_received(b"X: y\r\n")
    assert clocked.now_s == pytest.approx(30, abs=2)
    assert b"408 Request Timeout" in clocked.transport.written[0]


async def test_stalled_body_gets_408(wire):
    server = await wire.serve(answer_ok, body_timeout_s=0.1)
    client = await wire.client(server.port)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
    answer = await client.response()
    assert answer.status == 408
    assert "body" in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("framing", "drop"),
    [
        (b"Content-Length: 1000000", b"x"),
        (b"Transfer-Encoding: chunked", b"1\r\nx\r\n"),
        (b"Transfer-Encoding: chunked", b"1;extension=1\r\nx\r\n"),
    ],
)
def test_trickling_body_gets_408(framing, drop, clocked):
    """One byte a second never lets `body_timeout_s` pass without a byte."""
    clocked.connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % framing)
    while not clocked.transport.written and clocked.now_s < 1000:
        clocked.wait_s(1)
        clocked.connection.data_received(drop)
    assert clocked.now_s == pytest.approx(60, abs=2)
    assert b"408 Request Timeout" in clocked.transport.written[0]
    assert b"1024 bytes/s" in clocked.transport.written[0]


def test_body_that_began_fast_can_not_trickle_for_long(clocked):
    clocked.connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 60000000\r\n\r\n")
    clocked.connection.data_received(b"x" * 50_000_000)
    while not clocked.transport.written and clocked.now_s < 1000:
        clocked.wait_s(1)
        clocked.connection.data_received(b"x")
    assert clocked.now_s == pytest.approx(60, abs=2)


def test_extensions_and_trailers_do_not_extend_a_body(clocked):
    clocked.connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    while not clocked.transport.written and clocked.now_s < 1000:
        clocked.wait_s(1)
        clocked.connection.data_received(b"x-trailer: " + b"y" * 50 + b"\r\n")
    assert clocked.now_s == pytest.approx(60, abs=2)


def test_slow_body_above_the_least_rate_is_waited_for(clocked):
    size = 600_000
    clocked.connection.data_received(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    for _ in range(10):  # in bursts, with nearly a minute between them
        clocked.wait_s(58)
        clocked.connection.data_received(b"x" * (size // 10))
    assert clocked.transport.written == []
    assert not clocked.connection._reader.reading


async def test_silent_connections_are_closed_without_a_word(wire):
    server = await wire.serve(answer_ok, head_timeout_s=0.1)
    client = await wire.client(server.port)
    assert await client.rest() == b""
    server = await wire.serve(answer_ok, keep_alive_timeout_s=0.1)
    client = await wire.client(server.port)
    client.send(GET)
    assert (await client.response()).status == 200
    assert await client.rest() == b""


async def test_no_limit_runs_while_the_handler_works(wire, time_passes):
    go = asyncio.Event()

    async def handler(request, responder):
        await go.wait()
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await eventually(lambda: server.busy == 1)
    time_passes(server, 1_000_000)
    go.set()
    assert (await client.response()).status == 200


async def test_time_out_of_the_next_request_leaves_the_answer_before_it_alone(wire, time_passes):
    go = asyncio.Event()

    async def handler(request, responder):
        await go.wait()
        responder.send(200, (), b"fine")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET + GET[:10])
    await eventually(lambda: any(connection._reader.reading for connection in server._connections))
    time_passes(server, 31)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.02)
    go.set()
    assert (await client.response()).body == b"fine"
    assert (await client.response()).status == 408


async def test_connections_beyond_the_limit_get_503(wire):
    server = await wire.serve(answer_ok, max_connections=2)
    clients = [await wire.client(server.port) for _ in range(2)]
    for client in clients:
        client.send(GET)
        assert (await client.response()).status == 200
    extra = await wire.client(server.port)
    answer = await extra.response()
    assert answer.status == 503
    assert answer.headers["connection"] == "close"
    assert await extra.rest() == b""
    await clients[0].close()
    await eventually(lambda: server.connections == 1)
    again = await wire.client(server.port)
    again.send(GET)
    assert (await again.response()).status == 200


async def test_client_that_reads_nothing_is_cut_off(wire):
    cancelled = asyncio.Event()
    paused = asyncio.Event()

    async def handler(request, responder):
        responder.on_pause = paused.set
        responder.start(200)
        try:
            while not paused.is_set():
                responder.write(b"x" * 65536)
                await asyncio.sleep(0)
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await wire.serve(handler, write_timeout_s=0.1)
    client = await wire.client(server.port, limit=1024)
    client.send(GET)
    await asyncio.wait_for(cancelled.wait(), 8)
    assert paused.is_set()


async def test_last_answer_is_not_cut_while_its_client_reads_on(offline):
    offline.transport.unread_bytes = 1000
    offline.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    while not offline.transport.closed:
        await asyncio.sleep(0)
    now_s = asyncio.get_running_loop().time()
    offline.connection.check_deadlines(now_s + 30)
    offline.transport.unread_bytes = 500
    offline.connection.check_deadlines(now_s + 301)
    assert not offline.transport.aborted
    offline.connection.check_deadlines(now_s + 700)
    assert offline.transport.aborted


async def test_many_connections_are_told_to_come_back(wire):
    server = await wire.serve(answer_ok, max_connections=1)
    held = await wire.client(server.port)
    held.send(GET)
    await held.response()
    extra = await wire.client(server.port)
    answer = await extra.response()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert server.turned_away == {"connections": 1}


async def test_a_high_descriptor_number_gets_503(wire):
    server = await wire.serve(answer_ok, max_descriptor=3)
    client = await wire.client(server.port)
    answer = await client.response()
    assert answer.status == 503
    assert b"file descriptor" in answer.body
    assert server.turned_away == {"descriptors": 1}


CHUNKED = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"


def whole(size: int) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size


async def test_bodies_together_are_bounded_and_room_comes_back(wire):
    go = asyncio.Event()

    async def hold(request, responder):
        await go.wait()
        responder.send(200, (), b"%d" % len(request.body))

    server = await wire.serve(hold, max_bodies_bytes=100)
    first, second, third = [await wire.client(server.port) for _ in range(3)]
    first.send(whole(60))
    while server.busy < 1:
        await asyncio.sleep(0)
    second.send(whole(41))
    refused = await second.response()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert b"set aside" in refused.body
    third.send(CHUNKED + b"28\r\n" + b"y" * 40 + b"\r\n")
    while server.bodies_bytes < 100:
        await asyncio.sleep(0)
    third.send(b"1\r\ny\r\n0\r\n\r\n")
    assert (await third.response()).status == 503
    go.set()
    assert (await first.response()).body == b"60"
    for client in (second, third):
        await client.rest()
    while server.connections > 1:
        await asyncio.sleep(0.002)
    assert server.bodies_bytes == 0
    assert server.turned_away == {"bodies": 2}
    first.send(whole(100))
    assert (await first.response()).body == b"100"
    assert server.bodies_bytes == 0


async def test_pipelined_bodies_are_each_let_go(wire):
    server = await wire.serve(answer_ok, max_bodies_bytes=1000)
    client = await wire.client(server.port)
    client.send(whole(10) + whole(300) + whole(20))
    for _ in range(3):
        assert (await client.response()).status == 200
    assert server.bodies_bytes == 0


async def test_a_client_that_leaves_in_its_body_frees_its_room(wire):
    server = await wire.serve(answer_ok, max_bodies_bytes=1000)
    client = await wire.client(server.port)
    client.send(whole(900)[:200])
    while not server.bodies_bytes:
        await asyncio.sleep(0)
    assert 0 < server.bodies_bytes < 200
    client.reset()
    while server.connections:
        await asyncio.sleep(0.002)
    assert server.bodies_bytes == 0


async def test_bodies_that_are_announced_and_not_sent_take_nobodys_room(wire):
    server = await wire.serve(answer_ok, max_bodies_bytes=1000)
    liars = [await wire.client(server.port) for _ in range(5)]
    for liar in liars:
        liar.send(whole(900)[:-900])
    honest = await wire.client(server.port)
    honest.send(whole(900))
    assert (await honest.response()).status == 200
    liars[0].send(b"x" * 600)
    while server.bodies_bytes < 600:
        await asyncio.sleep(0)
    liars[1].send(b"x" * 600)  # what was announced fitted, what comes does not
    assert (await liars[1].response()).status == 503
    liars[0].send(b"x" * 300)
    assert (await liars[0].response()).status == 200
    for liar in liars:
        liar.reset()
    while server.connections > 1:
        await asyncio.sleep(0.002)
    assert server.bodies_bytes == 0


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if most != resource.RLIM_INFINITY else 65_536, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


async def test_everybody_in_a_burst_is_told_that_there_are_too_many(wire, many_descriptors):
    """More than get time to read their answer."""
    server = await wire.serve(answer_ok, max_connections=1)
    first = await wire.client(server.port)
    first.send(GET)
    assert (await first.response()).status == 200
    crowd: list[socket.socket] = []

    def ask() -> list[bytes]:
        for _ in range(300):
            crowd.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            crowd[-1].sendall(GET)
        return [client.recv(12) for client in crowd]

    try:
        answers = await asyncio.to_thread(ask)
    finally:
        for client in crowd:
            client.close()
    assert answers == [b"HTTP/1.1 503"] * 300
    assert server.turned_away == {"connections": 300}
    while server.connections > 1 or server._turned_away:
        await asyncio.sleep(0.002)
