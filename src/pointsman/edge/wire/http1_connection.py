"""One client connection of the server: parsing, limits, pipelining, and the life of its handler tasks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

logger = logging.getLogger("pointsman.wire")

Handler = Callable[[IncomingRequest, Responder], Coroutine[None, None, None]]

_NEVER = float("inf")
_SLICE_BYTES = 16 * 1024
_AHEAD_REQUESTS = 16
_AHEAD_BYTES = 64 * 1024
_LINGER_S = 2.0
_JSON = ((b"content-type", b"application/json"),)
_CHECKED = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of what a client may take. Sizes in bytes, times in seconds."""

    max_head_bytes: int = 65536
    max_headers: int = 128
    max_body_bytes: int = 64 * 1024 * 1024
    head_timeout_s: float = 30.0
    """From the first byte of a request to its complete head, and from a new connection to its first byte."""
    body_timeout_s: float = 60.0
    """Without a byte of a body that has begun."""
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 300.0
    """Without a byte read by a client that has an answer waiting."""
    max_connections: int | None = None


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    handler: Handler
    limits: ServerLimits
    closing: bool

    def opened(self, connection: ServerConnection) -> bool:
        """Count it in; False: there are too many."""

    def closed(self, connection: ServerConnection) -> None:
        """Count it out."""

    def track(self, task: asyncio.Task[None]) -> None:
        """Keep a handler's task until it ends."""

    def rejection(self, status: int, message: str) -> bytes:
        """JSON body of an answer to what is not a proper request."""

    def date_line(self) -> bytes:
        """The `date` field with CRLF."""


class _Rejected(Exception):  # noqa: N818  (it never leaves this file)
    """Stops the parser."""


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
        "_began",
        "_body",
        "_body_bytes",
        "_body_left",
        "_broken",
        "_checked",
        "_chunked",
        "_current",
        "_deadline",
        "_expects_continue",
        "_head_bytes",
        "_headers",
        "_idle_bytes",
        "_in_body",
        "_in_head",
        "_loop",
        "_lost",
        "_parser",
        "_paused",
        "_peer",
        "_queue",
        "_rejection",
        "_server",
        "_target",
        "_task",
        "_transport",
        "_unread_bytes",
        "_upgrade",
        "_used",
        "_write_deadline",
        "_write_paused",
    )

    def __init__(self, server: ConnectionOwner, loop: asyncio.AbstractEventLoop):
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[_Waiting | _Rejection] = deque()
        self._current: Responder | None = None
        self._task: asyncio.Task[None] | None = None
        self._peer = ""
        self._backlog = b""
        self._ahead_bytes = 0
        self._paused = False
        self._write_paused = False
        self._unread_bytes = 0
        self._broken = False
        self._lost = False
        self._used = False
        self._deadline = _NEVER
        self._write_deadline = _NEVER
        self._rejection: _Rejection | None = None
        self._began = False
        self._reset()

    def _reset(self) -> None:
        self._in_head = False
        self._in_body = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._checked: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._idle_bytes = 0
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._body_left = 0
        self._chunked = False
        self._expects_continue = False
        self._upgrade = False

    # ---- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start counting its time, or send it away when there are too many."""
        stream = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = stream
        peer = stream.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        self._deadline = self._loop.time() + self._server.limits.head_timeout_s
        if not self._server.opened(self):
            self._reject(503, "too many connections; try again later")
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone for good."""
        self._client_left()
        self._server.closed(self)
        self._backlog = b""

    def eof_received(self) -> None:
        """The client has closed: an answer that is not complete has no reader any more."""
        unfinished = self._current is not None
        self._client_left()
        if unfinished:
            self.cut()
        elif not self._broken:
            self._deadline = self._loop.time() + _LINGER_S
            self._broken = True

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._write_paused = True
        self._unread_bytes = self._transport.get_write_buffer_size() if self._transport else 0
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
        """Bytes of the client."""
        if self._broken:
            return  # what follows a rejected request is read and dropped, so that the answer isn't lost by a reset
        if self._current is not None:
            self._ahead_bytes += len(data)
        if self._paused:
            self._backlog += data
        else:
            self._feed(data)

    # ---- parsing

    def _feed(self, data: bytes) -> None:
        size = len(data)
        if size <= _SLICE_BYTES or size <= self._body_left:
            self._feed_slice(data)
        else:
            view = memoryview(data)
            at = 0
            while at < size and not self._broken:
                if self._is_full():
                    self._backlog = data[at:]
                    break
                step = max(_SLICE_BYTES, self._body_left)
                self._feed_slice(view[at : at + step])
                at += step
        if self._broken:
            return
        if self._is_full():
            self._pause()
        elif self._in_body:
            self._deadline = self._loop.time() + self._server.limits.body_timeout_s

    def _is_full(self) -> bool:
        return self._current is not None and (
            len(self._queue) >= _AHEAD_REQUESTS or self._ahead_bytes > _AHEAD_BYTES or bool(self._backlog)
        )

    def _feed_slice(self, data: bytes | memoryview) -> None:
        self._began = False
        body_bytes = self._body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(bytes(data[upgrade.args[0] :]))
            return
        except httptools.HttpParserCallbackError:
            rejection = self._rejection
            if rejection is None:
                logger.exception("parsing a request of %s failed", self._peer)
                rejection = _Rejection(500, "internal error; the log says more")
            self._reject(rejection.status, rejection.message)
            return
        except httptools.HttpParserError as error:
            rejection = self._explain(str(error))
            self._reject(rejection.status, rejection.message)
            return
        if self._began:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > 2 * self._server.limits.max_head_bytes:
                self._reject(431, self._too_large())
        elif self._chunked and self._body_bytes == body_bytes:
            self._idle_bytes += len(data)
            if self._idle_bytes > self._server.limits.max_head_bytes:
                self._reject(431, "chunk extensions and trailers are larger than a head may be; send less of them")

    def _explain(self, reason: str) -> _Rejection:
        if "version" in reason.lower() or reason.startswith("Expected HTTP/"):
            return _Rejection(505 if "nvalid HTTP version" in reason else 400, f"request line: {reason}; use HTTP/1.1")
        if "PRI" in reason:
            return _Rejection(505, "request line: HTTP/2 is not spoken here; use HTTP/1.1")
        if not self._in_head and not self._in_body:
            return _Rejection(400, f"request line: {reason}")
        if self._in_body:
            return _Rejection(400, f"request body: {reason}")
        if not self._headers and "eader" not in reason and "ontent-Length" not in reason and "ncoding" not in reason:
            return _Rejection(400, f"request line: {reason}")
        after = f" (after {self._headers[-1][0].decode('latin-1')!r})" if self._headers else ""
        return _Rejection(400, f"request header: {reason}{after}")

    def _too_large(self) -> str:
        limits = self._server.limits
        return f"request header: larger than {limits.max_head_bytes} bytes or {limits.max_headers} fields; send less"

    def _stop(self, status: int, message: str) -> _Rejected:
        self._rejection = _Rejection(status, message)
        return _Rejected(message)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its `upgrade` field: a server may ignore it (RFC 9110, 7.8)."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._reject(405, "request line: CONNECT is not served here")
            return
        fields = [f for f in self._headers if f[0] != b"upgrade"]
        version = self._parser.get_http_version().encode()
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._target, version, lines)
        self._reset()
        self._parser = httptools.HttpRequestParser(self)
        self._feed_slice(head + rest)

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        """Parser: the first byte of a request."""
        self._reset()
        self._in_head = self._began = self._used = True
        self._deadline = self._loop.time() + self._server.limits.head_timeout_s

    def on_url(self, url: bytes) -> None:
        """Parser: request target, or a part of it."""
        self._target += url
        if len(self._target) > self._server.limits.max_head_bytes:
            raise self._stop(414, f"request line: the target is longer than {self._server.limits.max_head_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header field, or a trailer, which is dropped."""
        if not self._in_head:
            return
        name = name.lower()
        value = value.rstrip(b" \t")
        self._head_bytes += len(name) + len(value)
        headers = self._headers
        headers.append((name, value))
        limits = self._server.limits
        if self._head_bytes > limits.max_head_bytes or len(headers) > limits.max_headers:
            raise self._stop(431, self._too_large())
        if name in _CHECKED:
            if name in self._checked and name != b"expect":
                raise self._stop(400, f"request header {name.decode()!r} is given twice; send it once")
            self._checked[name] = value

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._stop(505, f"request line: HTTP/{version} is not spoken here; use HTTP/1.1")
        checked = self._checked
        if version == "1.1" and b"host" not in checked:
            raise self._stop(400, "request header 'host' is missing; HTTP/1.1 needs it")
        self._in_head = False
        self._upgrade = self._parser.should_upgrade()
        if self._upgrade:
            return
        self._in_body = True
        encoding = checked.get(b"transfer-encoding")
        if encoding is not None:
            if encoding.lower() != b"chunked" or version == "1.0":
                raise self._stop(400, f"request header 'transfer-encoding': only chunked is known, not {encoding!r}")
            self._chunked = True
        length = int(checked.get(b"content-length", b"0"))
        if length > self._server.limits.max_body_bytes:
            raise self._stop(413, self._body_too_large(length))
        self._body_left = length
        if b"expect" in checked:
            self._check_expectation(checked[b"expect"], version)

    def _check_expectation(self, expectation: bytes, version: str) -> None:
        if expectation.lower() != b"100-continue":
            raise self._stop(417, f"request header 'expect': only 100-continue is known, not {expectation!r}")
        if version == "1.1" and (self._chunked or self._body_left):
            self._expects_continue = True
            self._loop.call_soon(self._continue)

    def _body_too_large(self, length: int) -> str:
        return f"request body: {length} bytes are more than the {self._server.limits.max_body_bytes} allowed"

    def on_body(self, body: bytes) -> None:
        """Parser: body bytes."""
        size = len(body)
        held = self._body_bytes
        if not held:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            # not a list of pieces: a body in chunks of one byte would take fifty times its size
            self._body = bytearray(self._body) + body
        self._body_bytes = held + size
        self._idle_bytes = 0
        if self._chunked:
            if self._body_bytes > self._server.limits.max_body_bytes:
                raise self._stop(413, self._body_too_large(self._body_bytes))
        else:
            self._body_left -= size

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        if self._upgrade:
            return
        parser = self._parser
        headers: Headers = tuple(self._headers)
        method = parser.get_method().decode("ascii")
        request = IncomingRequest(method, self._target, headers, bytes(self._body), self._peer)
        self._queue.append(_Waiting(request, parser.get_http_version() == "1.0", parser.should_keep_alive()))
        self._reset()
        self._deadline = _NEVER
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
        elif self._server.closing and not (self._in_head or self._in_body):
            self._close()
        elif self._in_body:
            self._continue()
        elif not self._in_head and not self._broken:
            self._deadline = self._loop.time() + self._server.limits.keep_alive_timeout_s
        if self._paused and not self._is_full_behind():
            self._loop.call_soon(self._unpause)

    def _is_full_behind(self) -> bool:
        return self._current is not None and len(self._queue) >= _AHEAD_REQUESTS

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
            responder.send(status, _JSON, self._server.rejection(status, message))

    def response_done(self, responder: Responder) -> None:
        """Responder: its answer is complete."""
        if responder is not self._current:
            return
        self._current = None
        self._task = None
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
    def closing(self) -> bool:
        """No further request is taken on this connection."""
        return self._server.closing

    def _continue(self) -> None:
        """Tell a client that waits for it to send its body, as soon as no other answer is being written."""
        if not self._expects_continue or self._current is not None or self._queue or self._lost or self._broken:
            return
        self._expects_continue = False
        if self._in_body and not self._body_bytes:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # ---- refusing and closing

    def _reject(self, status: int, message: str) -> None:
        """Answer with an error in its turn, then close; what the client sends from now on is dropped."""
        self._broken = True
        self._reset()
        self._backlog = b""
        self._deadline = _NEVER
        self._queue.append(_Rejection(status, message))
        if self._current is None:
            self._advance()

    def _answer_rejection(self, rejection: _Rejection) -> None:
        logger.info("rejected a request of %s with %d: %s", self._peer, rejection.status, rejection.message)
        assert self._transport is not None
        body = self._server.rejection(rejection.status, rejection.message)
        responder = Responder(self, self._transport, keep_alive=False)
        responder.send(rejection.status, _JSON, body)
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
        self._deadline = self._loop.time() + _LINGER_S
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

    def _pause(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._deadline = _NEVER
            self._transport.pause_reading()

    def _unpause(self) -> None:
        if not self._paused or self._lost:
            return
        self._paused = False
        data, self._backlog = self._backlog, b""
        if data and not self._broken:
            self._feed(data)
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            if self._in_head or self._in_body:
                limits = self._server.limits
                wait_s = limits.head_timeout_s if self._in_head else limits.body_timeout_s
                self._deadline = self._loop.time() + wait_s

    # ---- called by the server

    @property
    def busy(self) -> bool:
        """A request is being read or answered."""
        return self._current is not None or self._in_head or self._in_body or bool(self._queue)

    def close_when_idle(self) -> None:
        """The server is closing: end now if nothing is going on."""
        if not self.busy and not self._lost:
            self._close()

    def check_deadlines(self, now_s: float) -> None:
        """Act on what has taken too long."""
        if now_s >= self._write_deadline:
            self._check_reader(now_s)
        if now_s < self._deadline:
            return
        if self._broken or self._lost:
            self.cut()
        elif self._in_body:
            self._reject(408, f"request body: no byte for {self._server.limits.body_timeout_s:g} s")
        elif self._in_head:
            self._reject(408, f"request header: not complete after {self._server.limits.head_timeout_s:g} s")
        else:
            self._close()

    def _check_reader(self, now_s: float) -> None:
        unread_bytes = self._transport.get_write_buffer_size() if self._transport else 0
        if unread_bytes < self._unread_bytes:
            self._unread_bytes = unread_bytes
            self._write_deadline = now_s + self._server.limits.write_timeout_s
        else:
            logger.info("%s read nothing for %g s; cut off", self._peer, self._server.limits.write_timeout_s)
            self.cut()
