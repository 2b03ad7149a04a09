from __future__ import annotations

import asyncio
import json
import logging
import socket

import pytest

from pointsman.edge.wire.http1_server import HttpServer

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class Watched:
    """A handler that hangs where it is told to, and notes that it was cancelled."""

    def __init__(self, *, written: bool):
        self.written = written
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.responder = None

    async def __call__(self, request, responder):
        self.responder = responder
        if self.written:
            responder.start(200)
            responder.write(b"first")
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.mark.parametrize("written", [False, True], ids=["before the first byte", "in the stream"])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_cancels_the_handler(wire, written, how):
    handler = Watched(written=written)
    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await asyncio.wait_for(handler.entered.wait(), 8)
    if how == "reset":
        client.reset()
    else:
        await client.close()
    await asyncio.wait_for(handler.cancelled.wait(), 8)  # far below any time limit of the server
    assert handler.responder.disconnected
    handler.responder.write(b"into the void")
    handler.responder.finish()
    handler.responder.abort()


async def test_only_the_stream_whose_client_left_is_cancelled(wire):
    go = asyncio.Event()
    cancelled = 0

    async def handler(request, responder):
        nonlocal cancelled
        responder.start(200)
        responder.write(b"a")
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise
        responder.write(b"b")
        responder.finish()

    server = await wire.serve(handler)
    clients = [await wire.client(server.port) for _ in range(6)]
    for client in clients:
        client.send(GET)
        await client.head()
    for client in clients[::2]:
        client.reset()
    while cancelled < 3:
        await asyncio.sleep(0)
    go.set()
    for client in clients[1::2]:
        assert [await client.chunk() for _ in range(3)] == [b"a", b"b", b""]


async def test_work_after_finish_is_not_cancelled(wire):
    finished = asyncio.Event()
    go = asyncio.Event()
    done = asyncio.Event()

    async def handler(request, responder):
        responder.send(200, (), b"")
        finished.set()
        await go.wait()
        done.set()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await client.response()
    await client.close()
    while server.connections:
        await asyncio.sleep(0)
    go.set()
    await asyncio.wait_for(done.wait(), 8)


async def test_next_request_starts_at_finish(wire):
    go = asyncio.Event()

    async def handler(request, responder):
        responder.send(200, (), request.path.encode())
        if request.path == "/1":
            await go.wait()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [(await client.response()).body for _ in range(2)] == [b"/1", b"/2"]
    go.set()


@pytest.mark.parametrize("how", ["raise", "return"])
@pytest.mark.parametrize("started", [False, True])
async def test_handler_that_fails(wire, caplog, how, started):
    async def handler(request, responder):
        if started:
            responder.start(200)
            responder.write(b"half")
        if how == "raise":
            raise KeyError("secret detail")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    with caplog.at_level(logging.ERROR, "pointsman.wire"):
        client.send(GET)
        if started:
            data = await client.rest()
            assert not data.endswith(b"0\r\n\r\n")
        else:
            answer = await client.response()
            assert answer.status == 500
            error = json.loads(answer.body)["error"]
            assert error["type"] == "server_error"
            assert "secret" not in error["message"]
    assert [record.name for record in caplog.records].count("pointsman.wire") == 1


async def test_abort_lets_the_handler_end_by_itself(wire):
    ended = asyncio.Event()

    async def handler(request, responder):
        responder.start(200)
        responder.write(b"half")
        responder.abort()
        await asyncio.sleep(0.01)  # connection_lost comes meanwhile
        ended.set()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await client.rest()
    await asyncio.wait_for(ended.wait(), 8)


async def test_close_lets_running_requests_end(wire):
    go = asyncio.Event()
    entered = asyncio.Event()

    async def handler(request, responder):
        entered.set()
        await go.wait()
        responder.send(200, (), b"done")

    server = await wire.serve(handler)
    idle = await wire.client(server.port)
    busy = await wire.client(server.port)
    busy.send(GET)
    await entered.wait()
    closing = asyncio.ensure_future(server.close(grace_s=60))
    assert await idle.rest() == b""
    with pytest.raises(OSError):  # noqa: PT011  (the text differs by platform)
        await wire.client(server.port)
    assert not closing.done()
    go.set()
    answer = await busy.response()
    assert (answer.body, answer.headers["connection"]) == (b"done", "close")
    await asyncio.wait_for(closing, 8)


async def test_close_cancels_what_does_not_end_in_time(wire):
    waiting, streaming = Watched(written=False), Watched(written=True)

    async def handler(request, responder):
        await (streaming if request.path == "/s" else waiting)(request, responder)

    server = await wire.serve(handler)
    unstarted, started = [await wire.client(server.port) for _ in range(2)]
    unstarted.send(GET)
    started.send(b"GET /s HTTP/1.1\r\nHost: h\r\n\r\n")
    await waiting.entered.wait()
    await streaming.entered.wait()
    await asyncio.wait_for(server.close(grace_s=0.05), 8)
    assert waiting.cancelled.is_set()
    assert streaming.cancelled.is_set()
    assert (await unstarted.response()).status == 503
    assert not (await started.rest()).endswith(b"0\r\n\r\n")
    assert server.connections == 0


async def test_connection_that_loses_many_requests_leaks_nothing(wire):
    async def handler(request, responder):
        responder.start(200)
        responder.write(b"x" * 1000)
        await asyncio.sleep(0)
        responder.write(b"y")
        responder.finish()

    server = await wire.serve(handler)

    async def one(i):
        client = await wire.client(server.port)
        client.send(GET * (i % 4))
        if i % 3 == 0:
            client.reset()
        elif i % 4:
            await client.response()

    await asyncio.gather(*(one(i) for i in range(100)))
    await server.close()
    assert server.connections == 0


async def test_while_closing_requests_on_kept_connections_are_answered_as_their_last(wire):
    async def handler(request, responder):
        responder.send(200, (), b"ok")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await client.response()
    server.stop_listening()
    server.begin_closing(linger_s=60)
    client.send(GET)
    answer = await client.response()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await client.rest() == b""


async def test_a_stream_that_began_before_keeps_its_connection_for_a_moment(wire):
    """Its client was told that the connection is kept, so its next request may be on its way."""
    go = asyncio.Event()

    async def handler(request, responder):
        responder.start(200)
        responder.write(b"a")
        await go.wait()
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(GET)
    await client.head()
    server.begin_closing(linger_s=60)
    go.set()
    assert await client.chunk() == b"a"
    assert await client.chunk() == b""
    client.send(GET)
    assert (await client.response()).headers["connection"] == "close"


async def test_idle_connections_end_after_the_linger(wire):
    async def handler(request, responder):
        responder.send(200, (), b"ok")

    server = await wire.serve(handler, keep_alive_timeout_s=0.1)
    client = await wire.client(server.port)
    client.send(GET)
    await client.response()
    server.begin_closing(linger_s=0.01)
    assert await client.rest() == b""
    await server.wait_closed(5)
    assert server.connections == 0


async def test_a_queue_of_connections_that_two_servers_share_loses_none(wire):
    """One listens on, the other stops: what waits goes to the one that listens."""
    answered = []

    def answers(name):
        async def handler(request, responder):
            answered.append(name)
            responder.send(200, (), name)

        return handler

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    listener.setblocking(False)
    port = listener.getsockname()[1]
    old, new = HttpServer(answers(b"old")), HttpServer(answers(b"new"))
    await old.start(None, 0, socks=[listener.dup()])
    clients = [await wire.client(port) for _ in range(20)]
    await new.start(None, 0, socks=[listener.dup()])
    old.stop_listening()
    clients += [await wire.client(port) for _ in range(20)]
    for client in clients:
        client.send(GET)
        assert (await client.response()).status == 200
    last = await wire.client(port)
    last.send(GET)
    assert (await last.response()).body == b"new"
    for server in (old, new):
        await server.close()
    listener.close()
