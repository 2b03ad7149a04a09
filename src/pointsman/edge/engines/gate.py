"""Gate: stands before an engine that has no way to be taken out of service, and passes everything through."""

from __future__ import annotations

import asyncio

from pointsman.edge.wire.errors import UpstreamError, error_body
from pointsman.edge.wire.headers import Headers, passed_on
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.http1_server import HttpServer
from pointsman.edge.wire.http1_upstream import UpstreamConnection
from pointsman.edge.wire.origin import request_head

_JSON = ((b"content-type", b"application/json"),)
_DRAINS = "this engine drains and takes no new requests; ask another one"


class Gate:
    """Listens for the engine at `inner`, which nobody else should call."""

    def __init__(self, inner: str) -> None:
        self._origin = Origin.parse(inner)
        self._pool = UpstreamPool()
        self._server = HttpServer(self._handle, on_reject=error_body)
        self._unready = False
        self._refusing = False
        self.in_flight = 0
        """Requests for work that run."""

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the port is taken."""
        await self._server.start(host, port)

    async def close(self) -> None:
        """Cut what runs, and stop listening."""
        await self._server.close()
        await self._pool.close()

    def unready(self) -> None:
        """`/health` says 503 from now on."""
        self._unready = True

    def refuse(self) -> None:
        """New work gets 503 from now on."""
        self._refusing = True

    async def _handle(self, request: IncomingRequest, responder: Responder) -> None:
        if request.path in ("/health", "/v1/health") and self._unready:
            responder.send(503, _JSON, error_body(503, _DRAINS))
            return
        if request.method != "POST":
            await self._pass(request, responder)
            return
        if self._refusing:
            responder.send(503, _JSON, error_body(503, _DRAINS))
            return
        self.in_flight += 1
        try:
            await self._pass(request, responder)
        finally:
            self.in_flight -= 1

    async def _pass(self, request: IncomingRequest, responder: Responder) -> None:
        # One connection a request: the engine keeps a thread for each that is open.
        headers = [*passed_on(request.headers), (b"connection", b"close")]
        head = request_head(request.method.encode(), request.origin_form, self._origin, headers, len(request.body))
        try:
            connection = await self._pool.connect(self._origin)
        except UpstreamError as error:
            responder.send(503, _JSON, error_body(503, f"the engine behind this port can't be reached: {error}"))
            return
        pipe = _Pipe(connection, responder)
        connection.send(head, request.body, pipe)
        try:
            await pipe.ended
        except asyncio.CancelledError:
            connection.abort()
            raise


class _Pipe:
    """Hands an answer through as it comes."""

    def __init__(self, connection: UpstreamConnection, responder: Responder) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._responder = responder
        responder.on_pause, responder.on_resume = connection.pause_reading, connection.resume_reading

    def on_head(self, status: int, headers: Headers) -> None:
        """Its beginning; a head of its own goes out at once, as the engine sent it."""
        self._responder.start(status, passed_on(headers))
        self._responder.flush_head()

    def on_data(self, data: bytes) -> None:
        """A piece of it."""
        self._responder.write(data)

    def on_end(self) -> None:
        """It is complete."""
        self._responder.finish()
        self._end()

    def on_error(self, error: UpstreamError) -> None:
        """It broke off."""
        if self._responder.started:
            self._responder.abort()
        else:
            self._responder.send(502, _JSON, error_body(502, f"the engine behind this port failed: {error}"))
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
