"""Servers, scripted upstreams and raw clients on loopback. Everything that opens sockets runs on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field

import pytest
import uvloop

from pointsman.edge.wire.http1_client import Headers, UpstreamError, UpstreamPool
from pointsman.edge.wire.http1_connection import ServerConnection
from pointsman.edge.wire.http1_server import HttpServer, IncomingRequest, Responder, ServerLimits

TIME_LIMIT_S = 8.0


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@dataclass
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes


class RawClient:
    """A socket that writes what it is told and reads answers strictly."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> RawResponse:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), TIME_LIMIT_S)
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return RawResponse(int(first.split(" ")[1]), headers, b"")

    async def response(self, *, has_body: bool = True) -> RawResponse:
        answer = await self.head()
        if not has_body or answer.status in (204, 304):
            return answer
        if "content-length" in answer.headers:
            answer.body = await self._exactly(int(answer.headers["content-length"]))
        elif answer.headers.get("transfer-encoding") == "chunked":
            while piece := await self.chunk():
                answer.body += piece
        else:
            answer.body = await self.rest()
        return answer

    async def chunk(self) -> bytes:
        line = await asyncio.wait_for(self.reader.readuntil(b"\r\n"), TIME_LIMIT_S)
        data = await self._exactly(int(line, 16) + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def _exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), TIME_LIMIT_S)

    async def rest(self) -> bytes:
        """Everything until the server closes; a reset counts as closing."""
        data = b""
        try:
            while piece := await asyncio.wait_for(self.reader.read(65536), TIME_LIMIT_S):
                data += piece
        except ConnectionError:
            pass
        return data

    def reset(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


class RecordingSink:
    """Response sink that keeps everything, and checks the order of the calls."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.pieces: list[bytes] = []
        self.ended = False
        self.error: UpstreamError | None = None
        self.done = asyncio.Event()
        self.got_data = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def on_head(self, status: int, headers: Headers) -> None:
        assert not self.status
        assert not self.over
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        assert self.status
        assert data
        assert not self.over
        self.pieces.append(data)
        self.got_data.set()

    def on_end(self) -> None:
        assert self.status
        assert not self.over
        self.ended = True
        self.done.set()

    def on_error(self, error: UpstreamError) -> None:
        assert not self.over
        self.error = error
        self.done.set()

    @property
    def over(self) -> bool:
        return self.ended or self.error is not None

    async def wait(self) -> RecordingSink:
        await asyncio.wait_for(self.done.wait(), TIME_LIMIT_S)
        return self


def later(server: HttpServer, seconds: float) -> None:
    """What a server does when it looks at its connections after so much time."""
    now_s = asyncio.get_running_loop().time() + seconds
    for connection in tuple(server._connections):
        connection.check_deadlines(now_s)


def running_handlers() -> int:
    """Handler tasks of all servers that have not ended."""
    return sum(task.get_coro().__qualname__ == "ServerConnection._run" for task in asyncio.all_tasks())


@dataclass
class Wire:
    """Starts things on loopback and stops them after the test."""

    stack: AsyncExitStack
    servers: list[HttpServer] = field(default_factory=list)

    async def serve(
        self,
        handler: Callable[[IncomingRequest, Responder], Awaitable[None]],
        *,
        ssl: object = None,
        **limits: object,
    ) -> HttpServer:
        server = HttpServer(handler, ServerLimits(**limits))  # type: ignore[arg-type]
        await server.start("127.0.0.1", 0, ssl=ssl)  # type: ignore[arg-type]
        self.servers.append(server)
        self.stack.push_async_callback(self._stop, server)
        return server

    async def _stop(self, server: HttpServer) -> None:
        await server.close()
        assert server.connections == 0
        assert running_handlers() == 0

    async def client(self, port: int, **options: object) -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)  # type: ignore[arg-type]
        client = RawClient(reader, writer)
        self.stack.push_async_callback(client.close)
        return client

    async def upstream(self, script: Callable[[RawClient], Awaitable[None]], **options: object) -> int:
        """A TCP server that runs `script` for each connection and then closes it; returns its port."""
        tasks: set[asyncio.Task[None]] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = RawClient(reader, writer)
            try:
                await script(peer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                await peer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(connected(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, **options)  # type: ignore[arg-type]

        async def stop() -> None:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()

        self.stack.push_async_callback(stop)
        return int(server.sockets[0].getsockname()[1])

    def pool(self, **options: object) -> UpstreamPool:
        pool = UpstreamPool(**options)  # type: ignore[arg-type]

        async def stop() -> None:
            await pool.close()
            assert pool.open_connections == 0

        self.stack.push_async_callback(stop)
        return pool

    def sink(self) -> RecordingSink:
        return RecordingSink()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with AsyncExitStack() as stack:
        yield Wire(stack)


class FakeTransport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = False
        self.aborted = False
        self.reading = True
        self.unread_bytes = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 5) if name == "peername" else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@dataclass
class Offline:
    """A server connection without a socket."""

    connection: ServerConnection
    transport: FakeTransport
    handled: list[IncomingRequest]


@pytest.fixture
async def offline() -> Offline:
    handled: list[IncomingRequest] = []

    async def handler(request: IncomingRequest, responder: Responder) -> None:
        handled.append(request)
        responder.send(200, (), request.body)

    connection = ServerConnection(HttpServer(handler), asyncio.get_running_loop())
    transport = FakeTransport()
    connection.connection_made(transport)
    return Offline(connection, transport, handled)


class SteppedLoop:
    """Stands for an event loop whose time a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def create_task(self, coroutine: Coroutine[None, None, None]) -> None:
        coroutine.close()


class Clocked:
    """A server connection without a socket, whose time a test moves."""

    def __init__(self) -> None:
        self._loop = SteppedLoop()
        server = HttpServer(None)  # type: ignore[arg-type]
        server.opened = lambda connection, descriptor: None  # type: ignore[method-assign]
        server.track = lambda task: None  # type: ignore[method-assign]
        server.handler = self._handle
        self.connection = ServerConnection(server, self._loop)  # type: ignore[arg-type]
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)

    async def _handle(self, request: IncomingRequest, responder: Responder) -> None:
        raise AssertionError("the loop is none")

    @property
    def now_s(self) -> float:
        return self._loop.now_s

    def wait_s(self, seconds: float) -> None:
        self._loop.now_s += seconds
        self.connection.check_deadlines(self._loop.now_s)


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


@pytest.fixture(scope="session")
def time_passes() -> Callable[[HttpServer, float], None]:
    return later


@pytest.fixture(scope="session")
def fake_transport_type() -> type[FakeTransport]:
    return FakeTransport


async def read_request(peer: RawClient) -> tuple[bytes, bytes]:
    """Head and body of one request with content-length."""
    head = await peer.reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length: "):
            length = int(line.split(b": ")[1])
    return head, await peer.reader.readexactly(length)


@pytest.fixture
def next_request() -> Callable[[RawClient], Awaitable[tuple[bytes, bytes]]]:
    return read_request
