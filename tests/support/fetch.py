"""A whole exchange with an HTTP server in one call, over the client under test."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.edge.wire.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError
from pointsman.edge.wire.headers import Headers, first_value
from pointsman.edge.wire.http1_pool import UpstreamPool
from pointsman.edge.wire.http1_upstream import UpstreamConnection
from pointsman.edge.wire.origin import Origin, request_head

_MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """First value of a header field, `name` in lower case."""
        return first_value(self.headers, name)


class _Collector:
    """Sink that gathers the answer."""

    def __init__(self, connection: UpstreamConnection, max_bytes: int):
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: Headers = ()
        self.body = bytearray()
        self._connection = connection
        self._max_bytes = max_bytes

    def on_head(self, status: int, headers: Headers) -> None:
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > self._max_bytes:
            self._connection.abort()
            self.on_error(
                UpstreamProtocolError(
                    f"{self._connection.origin} sent more than {self._max_bytes} bytes; expected less"
                )
            )

    def on_end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def on_error(self, error: UpstreamError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def fetch(
    pool: UpstreamPool,
    origin: Origin,
    method: str,
    target: str,
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    body: bytes = b"",
    timeout_s: float = 30.0,
    max_bytes: int = _MAX_BYTES,
) -> Response:
    """Send a request and return the whole answer, whatever its status.

    A stale kept connection is tried again once on a fresh one. Raises UpstreamError, also when `timeout_s` is over.
    """
    head = request_head(method.encode("ascii"), target.encode("ascii"), origin, headers, len(body))
    try:
        async with asyncio.timeout(timeout_s):
            try:
                return await _exchange(await pool.connect(origin), head, body, max_bytes)
            except UpstreamClosed as error:
                if not error.reused or error.received:
                    raise
                return await _exchange(await pool.connect(origin, fresh=True), head, body, max_bytes)
    except TimeoutError:
        raise UpstreamError(f"{origin}: {method} {target} was not answered within {timeout_s:g} s") from None


async def _exchange(connection: UpstreamConnection, head: bytes, body: bytes, max_bytes: int) -> Response:
    sink = _Collector(connection, max_bytes)
    connection.send(head, body, sink)
    try:
        await sink.done
    except asyncio.CancelledError:
        connection.abort()
        raise
    return Response(sink.status, sink.headers, bytes(sink.body))
