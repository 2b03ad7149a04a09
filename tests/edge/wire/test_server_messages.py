from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from pointsman.edge.wire.http1_request import split_target
from support.waiting import eventually


async def echo(request, responder):
    text = b"%b %b?%b %b" % (request.method.encode(), request.path.encode(), request.query.encode(), request.body)
    responder.send(200, [(b"content-type", b"text/plain")], text)


async def test_body_with_content_length_then_the_next_on_the_same_connection(wire):
    server = await wire.serve(echo)
    client = await wire.client(server.port)
    for body in (b"hello", b"", b"x" * 300_000):
        client.send(b"POST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = await client.response()
        assert answer.status == 200
        assert answer.body == b"POST /v1/x?a=1 " + body
        assert "connection" not in answer.headers
        assert "date" in answer.headers
    assert server.connections == 1


async def test_chunked_body_with_extension_and_trailer(wire):
    seen = []

    async def handler(request, responder):
        seen.append(request.headers)
        responder.send(200, (), request.body)

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n")
    for part in (b"3;name=v\r\nabc", b"\r\n4\r\nde", b"fg\r\n0\r\nX-Trailer: t\r\n\r\n"):
        client.send(part)
        await client.writer.drain()
    assert (await client.response()).body == b"abcdefg"
    assert seen == [((b"host", b"h"), (b"transfer-encoding", b"Chunked"))]


async def test_headers_keep_order_and_duplicates_and_lose_case(wire):
    seen = []

    async def handler(request, responder):
        seen.append(request)
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\nX-A: 1 \t\r\nB:\r\nx-a: 2\r\nX-U: \xc3\xa9\r\n\r\n")
    await client.response()
    (request,) = seen
    assert request.headers == ((b"host", b"h"), (b"x-a", b"1"), (b"b", b""), (b"x-a", b"2"), (b"x-u", b"\xc3\xa9"))
    assert request.header(b"x-a") == b"1"
    assert request.header(b"none") is None
    assert request.peer.startswith("127.0.0.1:")


async def test_head_waits_for_the_first_body_bytes(wire):
    go = asyncio.Event()

    async def handler(request, responder):
        responder.start(200, [(b"x-a", b"b")])
        await go.wait()
        responder.write(b"first")
        responder.write(b"")
        responder.write(b"second")
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.05)
    go.set()
    answer = await client.response()
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["x-a"] == "b"
    assert answer.body == b"firstsecond"


async def test_flush_head_sends_it_alone(wire):
    go = asyncio.Event()

    async def handler(request, responder):
        responder.start(200)
        responder.flush_head()
        await go.wait()
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await client.head()
    assert answer.headers["transfer-encoding"] == "chunked"
    go.set()
    assert await client.chunk() == b""


async def test_no_body_where_none_may_be(wire):
    async def handler(request, responder):
        if request.path == "/204":
            responder.start(204, [(b"content-length", b"9"), (b"connection", b"x")])
            responder.finish()
        else:
            responder.send(200, (), b"12345")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(
        b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\nGET /204 HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    head = await client.response(has_body=False)
    assert head.headers["content-length"] == "5"
    empty = await client.response()
    assert empty.status == 204
    assert not {"content-length", "transfer-encoding", "connection"} & empty.headers.keys()
    assert (await client.response()).body == b"12345"


async def test_answer_without_any_body_gets_length_zero(wire):
    async def handler(request, responder):
        responder.start(500)
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.response()).headers["content-length"] == "0"


@pytest.mark.parametrize(
    ("request_bytes", "connection", "framing"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "close", None),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "close", None),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "close", "chunked"),
    ],
)
async def test_stream_that_ends_the_connection(wire, request_bytes, connection, framing):
    async def handler(request, responder):
        responder.start(200)
        responder.write(b"ab")
        responder.write(b"cd")
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(request_bytes)
    answer = await client.response()
    assert answer.headers["connection"] == connection
    assert answer.headers.get("transfer-encoding") == framing
    assert answer.body == b"abcd"
    assert await client.rest() == b""


async def test_http10_keeps_alive_with_a_length(wire):
    server = await wire.serve(echo)
    client = await wire.client(server.port)
    for _ in range(2):
        client.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        answer = await client.response()
        assert answer.headers["connection"] == "keep-alive"
        assert answer.body == b"GET /a? "


async def test_expect_100_continue(wire):
    server = await wire.serve(echo)
    client = await wire.client(server.port)
    for framing, body in ((b"Content-Length: 4", b"body"), (b"Transfer-Encoding: chunked", b"4\r\nbody\r\n0\r\n\r\n")):
        client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\n%b\r\n\r\n" % framing)
        assert (await client.head()).status == 100
        client.send(body)
        assert (await client.response()).body == b"PUT /? body"


async def test_no_100_when_the_body_comes_along(wire):
    server = await wire.serve(echo)
    client = await wire.client(server.port)
    client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody")
    assert (await client.head()).status == 200


async def test_100_continue_waits_for_the_answer_before_it(wire):
    go = asyncio.Event()

    async def handler(request, responder):
        if request.path == "/slow":
            responder.start(200)
            responder.write(b"a")
            await go.wait()
        else:
            responder.start(201)
        responder.write(b"b" + request.body)
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
    client.send(b"PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert (await client.head()).status == 200
    assert await client.chunk() == b"a"
    go.set()
    assert await client.chunk() == b"b"
    assert await client.chunk() == b""
    assert (await client.head()).status == 100
    client.send(b"xy")
    answer = await client.response()
    assert (answer.status, answer.body) == (201, b"bxy")


async def test_many_pipelined_requests_are_answered_in_order(wire):
    async def handler(request, responder):
        if int(request.body) % 7 == 0:
            await asyncio.sleep(0)
        responder.send(200, (), request.body)

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    bodies = [b"%d" % i for i in range(3000)]
    client.send(b"".join(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(b), b) for b in bodies))
    assert [(await client.response()).body for _ in bodies] == bodies


async def test_pipelining_is_served_only_so_far_ahead(wire):
    go = asyncio.Event()
    handled = []

    async def handler(request, responder):
        handled.append(len(request.body))
        await go.wait()
        responder.send(200, (), b"")

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    message = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    tracemalloc.start()
    for _ in range(40):
        client.send(message)
        await asyncio.wait_for(client.writer.drain(), 5)  # it is read, or the client's leaving would not be seen
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 2_000_000 + 1_000_000  # the current one and the next, and what stands in buffers
    assert handled == [1_000_000]
    go.set()
    assert [(await client.response()).status for _ in range(3)] == [200, 200, 429]
    assert await client.rest() == b""
    assert handled == [1_000_000] * 2


@pytest.mark.parametrize("ahead_bytes", [0, 1_000, 65_537, 200_000, 300_000, 5_000_000])
@pytest.mark.parametrize("kind", ["small requests", "one body", "a body that never ends"])
async def test_leaving_is_seen_however_much_was_sent_ahead(wire, ahead_bytes, kind):
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request, responder):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(get)
    await asyncio.wait_for(entered.wait(), 8)
    if kind == "small requests":
        client.send(get * (ahead_bytes // len(get)))
    else:
        length = ahead_bytes + (kind != "one body")
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % length + b"x" * ahead_bytes)
    await client.close()
    await asyncio.wait_for(cancelled.wait(), 8)


@pytest.mark.parametrize("size", [1, 5_000])
async def test_one_large_request_may_be_sent_ahead(wire, size):
    async def handler(request, responder):
        if not request.body:
            await held.wait()
        responder.send(200, (), b"%d" % len(request.body))

    held = asyncio.Event()
    server = await wire.serve(handler)
    client = await wire.client(server.port)
    get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    client.send(get + b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
    client.send(get * size)
    await asyncio.wait_for(client.writer.drain(), 5)
    held.set()
    assert [(await client.response()).body for _ in range(2 + size)] == [b"0", b"3000000"] + [b"0"] * size


async def test_unwanted_upgrade_is_ignored_and_the_body_kept(wire):
    server = await wire.serve(echo)
    client = await wire.client(server.port)
    head = b"POST /u HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    client.send(head + b"Content-Length: 4\r\n\r\nbodyGET /next HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.response()).body == b"POST /u? body"
    assert (await client.response()).body == b"GET /next? "


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/a/b?x=1?2", ("/a/b", "x=1?2")),
        (b"http://host:1/a?b", ("/a", "b")),
        (b"http://host?b", ("/", "b")),
        (b"http://host", ("/", "")),
        (b"*", ("*", "")),
        (b"/a?u=http://x", ("/a", "u=http://x")),
    ],
)
def test_split_target(target, expected):
    assert split_target(target) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v1/chat/completions?a=b?c", b"/v1/chat/completions?a=b?c"),
        (b"http://host:1/v1/%C3%A9?x=%20", b"/v1/%C3%A9?x=%20"),
        (b"HTTPS://user@host/a?", b"/a?"),
        (b"http://host", b"/"),
        (b"http://host?b", b"/?b"),
        (b"/a?u=http://x/y", b"/a?u=http://x/y"),
        (b"*", b"*"),
    ],
)
async def test_origin_form(wire, target, expected):
    async def handler(request, responder):
        responder.send(200, (), request.origin_form)

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    method = b"OPTIONS" if target == b"*" else b"POST"
    client.send(b"%b %b HTTP/1.1\r\nHost: h\r\n\r\n" % (method, target))
    assert (await client.response()).body == expected


async def test_responder_refuses_what_would_break_the_framing(wire):
    faults = []

    async def handler(request, responder):
        for call in (
            lambda: responder.write(b"x"),
            responder.finish,
            lambda: responder.start(100),
            lambda: responder.start(200, [(b"x-a", b"1\r\nx-b: 2")]),
            lambda: responder.start(200, [(b"x\n", b"1")]),
        ):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                faults.append(str(error))
        responder.start(200, length=3)
        responder.write(b"ab")
        try:
            responder.write(b"cd")
        except ValueError as error:
            faults.append(str(error))
        responder.write(b"c")
        responder.finish()
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await client.response()
    assert answer.body == b"abc"
    assert len(faults) == 6
    assert "x-a" in faults[3]


async def test_answer_shorter_than_its_length_is_cut(wire):
    async def handler(request, responder):
        responder.start(200, length=10)
        responder.write(b"short")
        responder.finish()

    server = await wire.serve(handler)
    client = await wire.client(server.port)
    client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert not (await client.rest()).endswith(b"\r\n\r\nshort12345")
    await eventually(lambda: server.connections == 0)
