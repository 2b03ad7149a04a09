from __future__ import annotations

import asyncio
import socket

import pytest

from pointsman.edge.wire.headers import passed_on
from pointsman.edge.wire.http1_client import (
    Origin,
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    request_head,
)
from support.fetch import fetch
from support.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def origin_of(port: int) -> Origin:
    return Origin("http", "127.0.0.1", port)


async def test_kept_connection_is_used_again(wire, next_request):
    requests = []

    async def script(peer):
        while True:
            requests.append(await next_request(peer))
            peer.send(OK)

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    for i in range(3):
        answer = await fetch(pool, origin, "POST", "/x?y", headers=[(b"x-i", b"%d" % i)], body=b"b" * i)
        assert (answer.status, answer.body, answer.header(b"content-length")) == (200, b"ok", b"2")
    assert pool.open_connections == 1
    head, body = requests[2]
    assert head.startswith(b"POST /x?y HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nx-i: 2\r\n" % origin.port)
    assert body == b"bb"
    connection = await pool.connect(origin)
    fresh = await pool.connect(origin, fresh=True)
    assert fresh is not connection
    assert pool.idle_connection(origin) is None


async def test_stale_connection_is_replaced(wire, next_request):
    accepted = []
    closed = asyncio.Event()

    async def script(peer):
        accepted.append(peer)
        await next_request(peer)
        peer.send(OK)
        if len(accepted) == 1:
            await next_request(peer)
            peer.reset()  # as if it had timed out just when the second request arrived
            closed.set()
        else:
            await next_request(peer)

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    assert (await fetch(pool, origin, "GET", "/")).body == b"ok"
    assert (await fetch(pool, origin, "GET", "/")).body == b"ok"
    assert closed.is_set()
    assert len(accepted) == 2


async def test_connection_closed_while_idle_is_forgotten(wire, next_request):
    async def script(peer):
        await next_request(peer)
        peer.send(OK)
        await peer.writer.drain()

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    await fetch(pool, origin, "GET", "/")
    while pool.open_connections:
        await asyncio.sleep(0)
    assert pool.idle_connection(origin) is None


async def test_idle_connections_expire_and_are_bounded(wire, next_request):
    async def script(peer):
        while True:
            await next_request(peer)
            peer.send(OK)

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool(idle_timeout_s=0.05, max_idle_per_origin=2)
    await asyncio.gather(*(fetch(pool, origin, "GET", "/") for _ in range(5)))
    while pool.open_connections > 2:
        await asyncio.sleep(0)
    await eventually(lambda: not pool.open_connections)


async def test_nobody_listens(wire):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        origin = origin_of(free.getsockname()[1])
        pool = wire.pool()
        with pytest.raises(UpstreamConnectError, match=str(origin.port)):
            await pool.connect(origin)
    with pytest.raises(UpstreamConnectError):
        await pool.connect(Origin("http", "no such host", 1))
    assert pool.open_connections == 0


async def test_connect_time_out(wire):
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        backlog = [socket.socket() for _ in range(4)]
        for waiting in backlog:
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        pool = wire.pool(connect_timeout_s=0.1)
        with pytest.raises(UpstreamConnectError, match=r"0\.1 s"):
            await pool.connect(origin_of(full.getsockname()[1]))
        for waiting in backlog:
            waiting.close()


async def test_reset_in_the_middle(wire, next_request):
    async def script(peer):
        await next_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await peer.writer.drain()
        await sink.got_data.wait()
        peer.reset()

    origin = origin_of(await wire.upstream(script))
    connection = await wire.pool().connect(origin)
    sink = wire.sink()
    connection.send(request_head(b"GET", b"/", origin, (), 0), b"", sink)
    await sink.wait()
    assert sink.body == b"abc"
    assert isinstance(sink.error, UpstreamClosed)
    assert sink.error.received
    assert not sink.error.reused


async def test_sending_on_a_closed_connection_tells_the_sink_later(wire):
    async def script(peer):
        """Close at once."""

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    connection = await pool.connect(origin)
    while pool.open_connections:
        await asyncio.sleep(0)
    sink = wire.sink()
    connection.send(request_head(b"GET", b"/", origin, (), 0), b"", sink)
    assert sink.error is None
    await sink.wait()
    assert isinstance(sink.error, UpstreamClosed)
    assert not sink.error.received


async def test_abort_shows_upstream_that_its_client_left(wire, next_request):
    left = asyncio.Event()

    async def script(peer):
        await next_request(peer)
        assert await peer.rest() == b""
        left.set()

    origin = origin_of(await wire.upstream(script))
    connection = await wire.pool().connect(origin)
    connection.send(request_head(b"GET", b"/", origin, (), 0), b"", wire.sink())
    connection.abort()
    await asyncio.wait_for(left.wait(), 8)


async def test_fetch_limits(wire, next_request):
    async def script(peer):
        head, _ = await next_request(peer)
        if b"/slow" not in head:
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000)
        await peer.rest()

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    with pytest.raises(UpstreamError, match="/slow"):
        await fetch(pool, origin, "GET", "/slow", timeout_s=0.05)
    with pytest.raises(UpstreamProtocolError, match="1000"):
        await fetch(pool, origin, "GET", "/", max_bytes=1000)
    while pool.open_connections:
        await asyncio.sleep(0)


async def test_closing_the_pool_ends_what_is_in_flight(wire, next_request):
    async def script(peer):
        await next_request(peer)
        await peer.rest()

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    asking = asyncio.ensure_future(fetch(pool, origin, "GET", "/"))
    while not pool.open_connections:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(UpstreamError):
        await asking


async def test_early_answer_to_a_large_body_is_heard(wire):
    async def script(peer):
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await peer.rest()

    origin = origin_of(await wire.upstream(script))
    pool = wire.pool()
    answer = await fetch(pool, origin, "POST", "/", body=b"x" * 20_000_000)
    assert answer.status == 413


@pytest.mark.parametrize(
    ("url", "expected", "host"),
    [
        ("http://h", Origin("http", "h", 80), b"h"),
        ("http://h:80/v1", Origin("http", "h", 80), b"h"),
        ("https://h:8443", Origin("https", "h", 8443), b"h:8443"),
        ("http://[::1]:9", Origin("http", "::1", 9), b"[::1]:9"),
    ],
)
def test_origin(url, expected, host):
    assert Origin.parse(url) == expected
    assert expected.host_header == host
    assert Origin.parse(str(expected)) == expected


@pytest.mark.parametrize("url", ["", "h:80", "ftp://h", "http://", "http://h:99999", "http://h:x"])
def test_bad_origin(url):
    with pytest.raises(ValueError, match="http"):
        Origin.parse(url)


def test_passed_on_drops_what_belongs_to_the_other_connection():
    fields = [
        (b"host", b"evil"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"content-length", b"7"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"accept", b"*/*"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
    ]
    head = request_head(b"POST", b"/a", Origin("http", "up", 81), passed_on(fields), 3)
    assert head == (b"POST /a HTTP/1.1\r\nhost: up:81\r\naccept: */*\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 3\r\n\r\n")
    assert b"content-length" not in request_head(b"GET", b"/a", Origin("http", "up", 81), (), 0)


@pytest.mark.parametrize(
    ("target", "fields"),
    [(b"/a b", ()), (b"/a\r\nx: y", ()), (b"/", [(b"x", b"1\r\ny: 2")]), (b"/", [(b"x\n", b"1")])],
)
def test_request_head_refuses_injection(target, fields):
    with pytest.raises(ValueError, match="CR"):
        request_head(b"GET", target, Origin("http", "up", 81), fields, 0)
