"""One client connection of the server: requests in order, time limits, and the life of its handler tasks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, cast

from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_limits import ServerLimits
from pointsman.edge.wire.http1_reader import RequestReader
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder
from pointsman.edge.wire.keepalive import keep_alive

logger = logging.getLogger("pointsman.wire")

OnHead = Callable[[Headers, str], "tuple[int, str] | None"]
"""(headers, the client's address) of a request with a long body: status and message to refuse it; None: read it."""
Handler = Callable[[IncomingRequest, Responder], Coroutine[None, None, None]]

_NEVER = float("inf")
_SLICE_BYTES = 16 * 1024
_AHEAD_REQUESTS = 16
_AHEAD_BYTES = 64 * 1024
_BACKLOG_BYTES = 256 * 1024
_NOT_TIMED = -1
_LINGER_S = 2.0
_JSON = ((b"content-type", b"application/json"),)
_REJECTION_FIELDS = {
    401: (*_JSON, (b"www-authenticate", b'Bearer realm="pointsman"')),
    503: (*_JSON, (b"retry-after", b"1")),
}


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    limits: ServerLimits
    on_head: OnHead | None
    """Asked before a long body is read."""
    closing: bool

    linger_s: float
    """While `closing`: what a connection without a request gets, since one may be on its way."""

    def opened(self, connection: ServerConnection, descriptor: int) -> str | None:
        """Count it in, or say why it can't be served."""

    def may_linger(self) -> bool:
        """Whether one that is turned away gets time to read its answer."""

    def closed(self, connection: ServerConnection) -> None:
        """Count it out."""

    def take_body_bytes(self, size: int) -> bool:
        """Count so many bytes of a body in (less than 0: out); False: there are too many."""

    def track(self, task: asyncio.Task[None]) -> None:
        """Keep a handler's task until it ends."""

    def rejection(self, status: int, message: str) -> bytes:
        """JSON body of an answer to what is not a proper request."""

    def date_line(self) -> bytes:
        """The `date` field with CRLF."""


@dataclass(frozen=True, slots=True)
class _Rejection:
    status: int
    message: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: IncomingRequest
    http10: bool
    keep_alive: bool


class ServerConnection(asyncio.Protocol):
    """Turns bytes into handler tasks, one at a time and in order."""

    __slots__ = (
        "_ahead_bytes",
        "_backlog",
        "_bodies_bytes",
        "_body_bytes",
        "_broken",
        "_current",
        "_current_body_bytes",
        "_deadline",
        "_expects_continue",
        "_held",
        "_loop",
        "_lost",
        "_queue",
        "_reader",
        "_server",
        "_task",
        "_transport",
        "_unread_bytes",
        "_write_deadline",
        "_write_paused",
    )

    def __init__(self, server: ConnectionOwner, loop: asyncio.AbstractEventLoop):
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(self, server.limits)
        self._queue: deque[_Waiting | _Rejection] = deque()
        self._current: Responder | None = None
        self._task: asyncio.Task[None] | None = None
        self._backlog = bytearray()
        self._bodies_bytes = 0
        self._current_body_bytes = 0
        self._ahead_bytes = 0
        self._body_bytes = _NOT_TIMED
        self._held = False
        self._write_paused = False
        self._unread_bytes = 0
        self._broken = False
        self._lost = False
        self._expects_continue = False
        self._deadline = _NEVER
        self._write_deadline = _NEVER

    # ---- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start counting its time, or send it away when there are too many."""
        stream = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = stream
        keep_alive(stream)
        self._reader.peer = _peer_name(stream.get_extra_info("peername"))
        self._deadline = self._loop.time() + self._server.limits.head_timeout_s
        descriptor = _descriptor(stream)
        refusal = self._server.opened(self, descriptor)
        if refusal is not None:
            self.refused(503, refusal)
            if not self._server.may_linger():
                _drop_unread(descriptor)
                stream.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone for good."""
        self._client_left()
        self._server.closed(self)
        self._backlog.clear()
        self._let_go(self._bodies_bytes)

    def eof_received(self) -> None:
        """The client has closed: an answer that is not complete has no reader any more."""
        unfinished = self._current is not None
        self._client_left()
        if unfinished:
            self.cut()
        elif not self._broken:
            self._close()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._write_paused = True
        self._unread_bytes = self._buffered_bytes()
        self._write_deadline = self._loop.time() + self._server.limits.write_timeout_s
        current = self._current
        if current is not None and current.on_pause is not None:
            current.on_pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._write_paused = False
        self._write_deadline = _NEVER
        current = self._current
        if current is None:
            self._advance()
        elif current.on_resume is not None:
            current.on_resume()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client. It is always read from, or its leaving would not be seen."""
        if self._broken:
            return  # what follows a rejected request is read and dropped, so that the answer isn't lost by a reset
        if self._current is not None or self._queue:
            self._ahead_bytes += len(data)
        if self._held:
            self._hold(data)
        else:
            self._feed(data)

    # ---- reading

    def _feed(self, data: bytes | bytearray) -> None:
        reader = self._reader
        size = len(data)
        if size <= _SLICE_BYTES or size <= reader.body_left:
            reader.feed(data)
        else:
            self._feed_slices(data)
        if self._broken:
            return
        if self._is_full():
            self._held = True
            self._deadline = _NEVER
        elif reader.in_body:
            self._earn_time()

    def _feed_slices(self, data: bytes | bytearray) -> None:
        """The parser can't be stopped between two requests, so it gets no more than a few at once."""
        reader = self._reader
        view = memoryview(data)
        at = 0
        while at < len(data) and not self._broken:
            if self._is_full():
                self._hold(view[at:])
                return
            step = max(_SLICE_BYTES, reader.body_left)
            reader.feed(view[at : at + step])
            at += step

    def _is_full(self) -> bool:
        """Enough requests wait behind the current one. Of the next one, a whole body may come whatever its size."""
        queued = len(self._queue)
        return queued >= _AHEAD_REQUESTS or (queued > 0 and self._ahead_bytes > _AHEAD_BYTES) or bool(self._backlog)

    def _hold(self, data: bytes | memoryview) -> None:
        """Keep what is sent far ahead of the answers, to a limit.

        Not to read on would be the gentler limit, but it hides that the client has left, and the engine would go on
        computing for nobody. The requests read so far are answered; a client that pipelines has to be ready to repeat
        the others (RFC 9112, 9.3.2).
        """
        if len(self._backlog) + len(data) <= _BACKLOG_BYTES:
            self._backlog += data
            return
        self.refused(
            429, f"more than {_BACKLOG_BYTES} bytes were sent ahead of the answers; wait for them, then repeat"
        )

    def _earn_time(self) -> None:
        """Each byte of a body pays for its share of a second; see `ServerLimits.min_body_rate_bytes_per_s`."""
        limits = self._server.limits
        body_bytes = self._reader.body_bytes
        latest_s = self._loop.time() + limits.body_timeout_s
        if self._body_bytes == _NOT_TIMED:
            self._deadline = latest_s
        else:
            earned_s = (body_bytes - self._body_bytes) / limits.min_body_rate_bytes_per_s
            self._deadline = min(latest_s, self._deadline + earned_s)
        self._body_bytes = body_bytes

    def head_begun(self) -> None:
        """Reader: the first byte of a request has come."""
        self._expects_continue = False
        self._body_bytes = _NOT_TIMED
        self._deadline = self._loop.time() + self._server.limits.head_timeout_s

    def refusal_of(self, headers: Headers) -> tuple[int, str] | None:
        """Reader: a long body is coming."""
        ask = self._server.on_head
        return None if ask is None else ask(headers, self._reader.peer)

    def continue_expected(self) -> None:
        """Reader: the client waits for `100 Continue`; not needed if the body is here already."""
        self._expects_continue = True
        self._loop.call_soon(self._continue)

    def has_room(self, size: int) -> bool:
        """Reader: whether a body of so many bytes could be held now."""
        if not self._server.take_body_bytes(size):
            return False
        self._server.take_body_bytes(-size)
        return True

    def body_coming(self, size: int) -> bool:
        """Reader: so many bytes of a body came and will be held."""
        if not self._server.take_body_bytes(size):
            return False
        self._bodies_bytes += size
        return True

    def _let_go(self, size: int) -> None:
        if size:
            self._bodies_bytes -= size
            self._server.take_body_bytes(-size)

    def request_read(self, request: IncomingRequest, *, http10: bool, keep_alive: bool) -> None:
        """Reader: a request is complete."""
        if not self._queue:
            self._ahead_bytes = 0  # its own bytes are bounded as those of any request
        self._queue.append(_Waiting(request, http10, keep_alive))
        self._deadline = _NEVER
        if self._current is None:
            self._advance()

    def refused(self, status: int, message: str) -> None:
        """Answer with an error in its turn, then close; what the client sends from now on is dropped."""
        self._broken = True
        self._backlog.clear()
        self._reader.reset()
        self._deadline = _NEVER
        self._queue.append(_Rejection(status, message))
        if self._current is None:
            self._advance()

    # ---- answering, one after the other

    def _advance(self) -> None:
        """Start the next request, or wait for one."""
        if self._current is not None or self._write_paused or self._lost:
            return
        if self._queue:
            waiting = self._queue.popleft()
            if isinstance(waiting, _Rejection):
                self._answer_rejection(waiting)
            else:
                self._start(waiting)
        elif self._server.closing and not self._reader.reading:
            self.close_when_idle()
        elif self._reader.in_body:
            self._continue()
        elif not self._reader.in_head and not self._broken:
            self._deadline = self._loop.time() + self._server.limits.keep_alive_timeout_s
        if self._held and len(self._queue) < _AHEAD_REQUESTS:
            self._loop.call_soon(self._release)

    def _start(self, waiting: _Waiting) -> None:
        transport = self._transport
        assert transport is not None
        request = waiting.request
        responder = Responder(
            self,
            transport,
            head_only=request.method == "HEAD",
            http10=waiting.http10,
            keep_alive=waiting.keep_alive,
        )
        self._current = responder
        self._current_body_bytes = len(request.body)
        self._ahead_bytes = 0
        self._task = self._loop.create_task(self._run(request, responder))
        self._server.track(self._task)

    async def _run(self, request: IncomingRequest, responder: Responder) -> None:
        try:
            await self._server.handler(request, responder)
        except asyncio.CancelledError:
            self._fail(responder, 503, "the server is shutting down; try again")
            raise
        except Exception:
            logger.exception("handler of %s %s failed", request.method, request.path)
            self._fail(responder, 500, "internal error; the log says more")
            return
        if not responder.finished and not responder.disconnected:
            logger.error("handler of %s %s ended without finishing its answer", request.method, request.path)
            self._fail(responder, 500, "internal error; the log says more")

    def _fail(self, responder: Responder, status: int, message: str) -> None:
        if responder.finished or responder.disconnected:
            return
        if responder.started:
            responder.abort()
        else:
            responder.send(status, _REJECTION_FIELDS.get(status, _JSON), self._server.rejection(status, message))

    def response_done(self, responder: Responder) -> None:
        """Responder: its answer is complete."""
        if responder is not self._current:
            return
        self._current = None
        self._task = None
        self._let_go(self._current_body_bytes)
        if not responder.keep_alive:
            self._queue.clear()
            self._close()
        else:
            self._advance()

    def response_aborted(self, responder: Responder) -> None:
        """Responder: its answer can't be completed. The handler chose so and goes on to its own end."""
        if responder is self._current:
            self._current = self._task = None
        self.cut()

    def cut(self) -> None:
        """End the connection at once, whatever is still to be written."""
        self._broken = True
        if self._transport is not None:
            self._transport.abort()

    def date_line(self) -> bytes:
        """The `date` field with CRLF."""
        return self._server.date_line()

    @property
    def write_paused(self) -> bool:
        """The client reads too slowly."""
        return self._write_paused

    @property
    def closing(self) -> bool:
        """No further request is taken on this connection."""
        return self._server.closing

    def _continue(self) -> None:
        """Tell a client that waits for it to send its body, as soon as no other answer is being written."""
        if not self._expects_continue or self._current is not None or self._queue or self._lost or self._broken:
            return
        self._expects_continue = False
        if self._reader.in_body and not self._reader.body_bytes:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # ---- refusing and closing

    def _answer_rejection(self, rejection: _Rejection) -> None:
        logger.info("rejected a request of %s with %d: %s", self._reader.peer, rejection.status, rejection.message)
        assert self._transport is not None
        body = self._server.rejection(rejection.status, rejection.message)
        responder = Responder(self, self._transport, keep_alive=False)
        responder.send(rejection.status, _REJECTION_FIELDS.get(rejection.status, _JSON), body)
        self._linger()

    def _linger(self) -> None:
        """Say that nothing more comes, and read on for a moment: closing with unread bytes would lose the answer."""
        self._broken = True
        self._deadline = self._loop.time() + _LINGER_S
        transport = self._transport
        if transport is not None and not transport.is_closing() and transport.can_write_eof():
            transport.write_eof()

    def _close(self) -> None:
        """Close after what is written has gone out."""
        self._broken = True
        self._unread_bytes = self._buffered_bytes()
        wait_s = self._server.limits.write_timeout_s if self._unread_bytes else _LINGER_S
        self._deadline = self._loop.time() + wait_s
        if self._transport is not None:
            self._transport.close()

    def _client_left(self) -> None:
        self._lost = True
        self._queue.clear()
        responder, task = self._current, self._task
        self._current = self._task = None
        if responder is not None and task is not None:
            responder.disconnected = True
            task.cancel()

    def _write(self, data: bytes) -> None:
        try:
            if self._transport is not None:
                self._transport.write(data)
        except RuntimeError:
            self._lost = True

    def _release(self) -> None:
        """Read on what was held."""
        if not self._held or self._broken or self._lost:
            return
        self._held = False
        data, self._backlog = self._backlog, bytearray()
        reader = self._reader
        if reader.reading:
            self._body_bytes = _NOT_TIMED
            limits = self._server.limits
            self._deadline = self._loop.time() + (limits.head_timeout_s if reader.in_head else limits.body_timeout_s)
        if data:
            self._feed(data)

    # ---- called by the server

    @property
    def busy(self) -> bool:
        """A request is being read or answered."""
        return self._current is not None or self._reader.reading or bool(self._queue)

    @property
    def unread(self) -> bool:
        """An answer is complete, and its client has yet to read of it."""
        return self._current is None and self._buffered_bytes() > 0

    def close_when_idle(self) -> None:
        """The server is closing: end soon if nothing is going on.

        Not at once: a request may be on its way, on a connection that the client was told will be kept.
        """
        if self.busy or self._lost or self._broken:
            return
        if self._server.linger_s > 0:
            self._deadline = min(self._deadline, self._loop.time() + self._server.linger_s)
        else:
            self._close()

    def check_deadlines(self, now_s: float) -> None:
        """Act on what has taken too long."""
        if now_s >= self._write_deadline and self._reads_on():
            self._write_deadline = now_s + self._server.limits.write_timeout_s
        if now_s < self._deadline:
            return
        if self._broken or self._lost:
            if self._reads_on():
                self._deadline = now_s + self._server.limits.write_timeout_s
        elif self._reader.in_body:
            limits = self._server.limits
            self.refused(
                408,
                f"request body: stopped for {limits.body_timeout_s:g} s, or lagged that far behind "
                f"{limits.min_body_rate_bytes_per_s:g} bytes/s; send it faster",
            )
        elif self._reader.in_head:
            self.refused(408, f"request header: not complete after {self._server.limits.head_timeout_s:g} s")
        else:
            self._close()

    def _reads_on(self) -> bool:
        """Whether the client has read something since the last look; if not, it is cut off."""
        before_bytes, self._unread_bytes = self._unread_bytes, self._buffered_bytes()
        if 0 < self._unread_bytes < before_bytes:
            return True
        if self._unread_bytes:
            logger.info("%s reads nothing of what is written to it; cut off", self._reader.peer)
        self.cut()
        return False

    def _buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0


def _peer_name(peer: object) -> str:
    if not isinstance(peer, tuple):
        return str(peer or "")
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _drop_unread(descriptor: int) -> None:
    """What has come already: to close before it is read would reset the connection, and the answer be lost."""
    with suppress(OSError):
        os.read(descriptor, _AHEAD_BYTES)


def _descriptor(transport: asyncio.Transport) -> int:
    """-1: it has none."""
    sock = transport.get_extra_info("socket")
    return -1 if sock is None else int(sock.fileno())
