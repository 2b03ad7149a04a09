"""The answer to one request: status, headers and framing of the body, on a connection that may vanish any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Protocol

from pointsman.edge.wire.headers import field_lines

_STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in HTTPStatus}
_FRAMING = frozenset((b"connection", b"content-length", b"keep-alive", b"transfer-encoding"))


class ResponseOwner(Protocol):
    """What a responder needs of its connection."""

    def response_done(self, responder: Responder) -> None:
        """The answer is complete."""

    def response_aborted(self, responder: Responder) -> None:
        """The answer can't be completed: end the connection at once."""

    def date_line(self) -> bytes:
        """The `date` field with CRLF."""

    @property
    def write_paused(self) -> bool:
        """The client reads slower than it is written to."""

    @property
    def closing(self) -> bool:
        """No further request is taken on this connection."""


class Responder:
    """Writes one answer. After the client has left, everything is a no-op."""

    __slots__ = (
        "_chunked",
        "_date_given",
        "_fields",
        "_head_only",
        "_http10",
        "_left",
        "_length",
        "_owner",
        "_status",
        "_streams",
        "_transport",
        "disconnected",
        "finished",
        "keep_alive",
        "on_pause",
        "on_resume",
        "started",
    )

    def __init__(
        self,
        owner: ResponseOwner,
        transport: asyncio.WriteTransport,
        *,
        head_only: bool = False,
        http10: bool = False,
        keep_alive: bool = True,
    ):
        self._owner = owner
        self._transport = transport
        self._head_only = head_only
        self._http10 = http10
        self._status = 0
        self._fields: bytes | None = None
        self._date_given = False
        self._length: int | None = None
        self._left = -1
        self._chunked = False
        self._streams = False
        self.keep_alive = keep_alive
        """False: the connection ends with this answer."""
        self.started = False
        self.finished = False
        self.disconnected = False
        """The client has left, or the connection was cut."""
        self.on_pause: Callable[[], None] | None = None
        """Called when the client reads slower than it is written to."""
        self.on_resume: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        """The client reads slower than it is written to: `on_resume` will be called."""
        return self._owner.write_paused

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]] = (), *, length: int | None = None) -> None:
        """Set status and headers; they go out together with the first body bytes.

        `length` is the body's length in bytes; None means that it is not known: chunked, or ended by closing for an
        HTTP/1.0 client. Framing fields among `headers` are dropped, they are decided here. Names are in lower case.
        Raises RuntimeError at a second start, ValueError for a status below 200 or a header that holds CR or LF.
        """
        if self.started:
            raise RuntimeError("the answer has been started before; start it once")
        if status < 200:
            raise ValueError(f"status {status} is not a final one; use 200 or above")
        fields = field_lines(headers, _FRAMING)
        self._fields = fields
        self._date_given = b"\r\ndate: " in fields or fields.startswith(b"date: ")
        self._status = status
        self._length = length
        self.started = True

    def flush_head(self) -> None:
        """Send the head now, although no body has come yet."""
        if self._fields is not None and not self.disconnected:
            self._send(self._take_head())

    def write(self, data: bytes, framed: bytes | None = None) -> None:
        """Send body bytes. Raises ValueError beyond the length given to `start`.

        `framed` is the same data as whole chunks, if the caller has it: it goes out as it is where chunks are sent.
        """
        if self.disconnected or not data:
            return
        if self._streams:  # a token's way
            try:
                self._transport.write(framed or b"%x\r\n%b\r\n" % (len(data), data))
            except RuntimeError:
                self.disconnected = True  # see _send
            return
        if not self.started or self.finished:
            raise RuntimeError("body bytes outside of an answer; call start() before and finish() after them")
        head = self._take_head() if self._fields is not None else b""
        if self._chunked:
            self._streams = True
            self._send(b"%b%x\r\n%b\r\n" % (head, len(data), data))
        elif self._head_only:
            if head:
                self._send(head)
        else:
            if self._left >= 0:
                if len(data) > self._left:
                    raise ValueError(f"{len(data) - self._left} body bytes more than the content-length of the answer")
                self._left -= len(data)
            self._send(head + data if head else data)

    def finish(self) -> None:
        """End the answer. One that is shorter than its content-length cuts the connection."""
        if self.finished or self.disconnected:
            return
        if not self.started:
            raise RuntimeError("finish() before start()")
        if self._fields is not None:
            if self._length is None and not self._head_only:
                self._length = 0
            self._send(self._take_head())
        if self._left > 0:
            self.abort()
            return
        if self._chunked:
            self._send(b"0\r\n\r\n")
        self._streams = False
        self.finished = True
        self._owner.response_done(self)

    def send(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer with content-length."""
        self.start(status, headers, length=len(body))
        self.write(body)
        self.finish()

    def abort(self) -> None:
        """Cut the connection: the client sees that the answer is not complete."""
        if not self.finished:
            self.disconnected = True
            self._owner.response_aborted(self)

    def _take_head(self) -> bytes:
        fields = self._fields or b""
        self._fields = None
        date = b"" if self._date_given else self._owner.date_line()
        framing = self._framing()
        if self._owner.closing:
            self.keep_alive = False
        if not self.keep_alive:
            framing += b"connection: close\r\n"
        elif self._http10:
            framing += b"connection: keep-alive\r\n"
        line = _STATUS_LINES.get(self._status) or b"HTTP/1.1 %d \r\n" % self._status
        return b"%b%b%b%b\r\n" % (line, date, fields, framing)

    def _framing(self) -> bytes:
        """The framing field, and the mode of the body with it."""
        length = self._length
        if self._status in (204, 304):
            self._head_only = True
            return b""
        if length is not None:
            if not self._head_only:
                self._left = length
            return b"content-length: %d\r\n" % length
        if self._http10:
            self.keep_alive = False
            return b""
        self._chunked = not self._head_only
        return b"transfer-encoding: chunked\r\n"

    def _send(self, data: bytes) -> None:
        try:
            self._transport.write(data)
        except RuntimeError:
            # uvloop raises between a failed write and connection_lost, which cancels the handler right after.
            self.disconnected = True
