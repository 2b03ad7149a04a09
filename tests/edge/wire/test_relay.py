"""Server and client together, as the relay uses them: back-pressure, cancellation, TLS."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc

import pytest
import trustme

from pointsman.edge.wire.headers import passed_on
from pointsman.edge.wire.http1_client import Origin, UpstreamConnectError, request_head
from pointsman.edge.wire.trust import Trusts
from support.fetch import fetch

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


class Forward:
    def __init__(self, responder):
        self.responder = responder
        self.done = asyncio.get_running_loop().create_future()
        self.passed_bytes = 0

    def on_head(self, status, headers):
        self.responder.start(status, passed_on(headers))

    def on_data(self, data):
        self.passed_bytes += len(data)
        self.responder.write(data)

    def on_end(self):
        self.responder.finish()
        self.done.set_result(None)

    def on_error(self, error):
        self.done.set_exception(error)


class Relay:
    """The smallest relay."""

    def __init__(self, pool, origin):
        self.pool, self.origin = pool, origin
        self.sinks = []

    async def __call__(self, request, responder):
        connection = await self.pool.connect(self.origin)
        sink = Forward(responder)
        self.sinks.append(sink)
        responder.on_pause, responder.on_resume = connection.pause_reading, connection.resume_reading
        head = request_head(
            request.method.encode(), request.target, self.origin, passed_on(request.headers), len(request.body)
        )
        connection.send(head, request.body, sink)
        try:
            await sink.done
        except asyncio.CancelledError:
            connection.abort()
            raise


async def relay_to(wire, script, **pool_options):
    origin = Origin("http", "127.0.0.1", await wire.upstream(script))
    relay = Relay(wire.pool(**pool_options), origin)
    return relay, await wire.serve(relay)


async def test_slow_client_pauses_upstream_and_memory_stays_small(wire, next_request):
    total = 60 * 1024 * 1024
    piece = b"x" * 65536
    sent_bytes = 0

    async def script(peer):
        nonlocal sent_bytes
        await next_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent_bytes < total:
            peer.send(piece)
            sent_bytes += len(piece)
            await peer.writer.drain()
        await peer.rest()

    relay, server = await relay_to(wire, script)
    client = await wire.client(server.port, limit=1024)
    client.send(GET)
    tracemalloc.start()
    moved = -1
    while moved != sent_bytes:  # until nothing moves any more
        moved = sent_bytes
        await asyncio.sleep(0.1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sent_bytes < total / 2
    assert held < 3_000_000
    answer = await client.head()
    received = 0
    while piece := await client.chunk():
        received += len(piece)
    assert (answer.status, received) == (200, total)
    assert relay.sinks[0].passed_bytes == total


async def test_client_that_leaves_is_an_abort_upstream(wire, next_request):
    left = asyncio.Event()

    async def script(peer):
        await next_request(peer)
        if len(relay.sinks) == 2:
            peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await peer.rest()
        left.set()

    relay, server = await relay_to(wire, script)
    before_first_byte = await wire.client(server.port)
    before_first_byte.send(GET)
    while not relay.sinks:
        await asyncio.sleep(0)
    await before_first_byte.close()
    await asyncio.wait_for(left.wait(), 8)
    left.clear()
    in_the_stream = await wire.client(server.port)
    in_the_stream.send(GET)
    await in_the_stream.head()
    in_the_stream.reset()
    await asyncio.wait_for(left.wait(), 8)


async def test_upstream_reset_cuts_only_its_own_stream(wire, next_request):
    go = asyncio.Event()

    async def script(peer):
        head, _ = await next_request(peer)
        peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await peer.writer.drain()
        await go.wait()
        if b"/bad" in head:
            peer.reset()
        else:
            peer.send(b"1\r\nd\r\n0\r\n\r\n")

    _, server = await relay_to(wire, script)
    good, bad = await wire.client(server.port), await wire.client(server.port)
    good.send(GET)
    bad.send(b"GET /bad HTTP/1.1\r\nHost: h\r\n\r\n")
    for client in (good, bad):
        await client.head()
        assert await client.chunk() == b"abc"
    go.set()
    assert await bad.rest() == b""
    assert [await good.chunk(), await good.chunk()] == [b"d", b""]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def test_tls_on_both_sides(wire, authority, next_request):
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    names = []
    server_context.sni_callback = lambda connection, name, context: names.append(name)

    async def script(peer):
        while True:
            await next_request(peer)
            peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret")

    port = await wire.upstream(script, ssl=server_context)
    relay = Relay(wire.pool(trusts=Trusts(context=client_context)), Origin("https", "localhost", port))
    server = await wire.serve(relay, ssl=server_context)
    pool = wire.pool(trusts=Trusts(context=client_context))
    for _ in range(2):
        answer = await fetch(pool, Origin("https", "localhost", server.port), "POST", "/", body=b"x" * 100_000)
        assert answer.body == b"secret"
    assert names == ["localhost", "localhost"]
    with pytest.raises(UpstreamConnectError, match=r"certificate|CERTIFICATE"):
        await fetch(wire.pool(), Origin("https", "localhost", server.port), "GET", "/")


async def test_tls_client_that_leaves_cancels_the_handler(wire, authority):
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(request, responder):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await wire.serve(handler, ssl=server_context)
    client = await wire.client(server.port, ssl=client_context, server_hostname="localhost")
    client.send(GET)
    await asyncio.wait_for(entered.wait(), 8)
    client.reset()
    await asyncio.wait_for(cancelled.wait(), 8)
