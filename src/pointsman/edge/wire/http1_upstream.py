"""One connection to an upstream: sends requests one after the other, hands each answer to a sink as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

import httptools

from pointsman.edge.wire.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError
from pointsman.edge.wire.keepalive import keep_alive
from pointsman.edge.wire.masked import MaskedSink
from pointsman.edge.wire.origin import Origin
from pointsman.edge.wire.response_sink import ChunkSink, ResponseSink

__all__ = ["ChunkSink", "ResponseSink", "UpstreamConnection", "UpstreamProtocol"]

logger = logging.getLogger("pointsman.wire")

_MAX_HEAD_BYTES = 256 * 1024
_MAX_INTERIM = 16
_JOIN_BYTES = 64 * 1024
_SHORT_CHUNK_BYTES = 4096


def _chunk_heads() -> tuple[bytes | None, ...]:
    """By the length of a chunk with its framing: the size line of a single whole chunk of that length."""
    heads: list[bytes | None] = [None] * (_SHORT_CHUNK_BYTES + 8)
    for size in range(1, _SHORT_CHUNK_BYTES):
        head = b"%x\r\n" % size
        heads[len(head) + size + 2] = head
    return tuple(heads)


_CHUNK_HEADS = _chunk_heads()
_LONGEST_CHUNK_BYTES = len(_CHUNK_HEADS)


class ConnectionPool(Protocol):
    """What a connection needs of its pool."""

    def released(self, connection: UpstreamProtocol) -> None:
        """It may take another request."""

    def lost(self, connection: UpstreamProtocol) -> None:
        """It is closed."""


class UpstreamConnection:
    """One request's hold on a connection of the pool; the hold ends with the exchange.

    It exists because a connection is used again at once: a caller that is late with `abort()` (its client left in the
    same turn of the loop in which the answer ended) must not hit the next request.
    """

    __slots__ = ("_protocol", "_secret", "origin", "reused")

    def __init__(self, protocol: UpstreamProtocol, secret: tuple[bytes, ...] = ()):
        self._secret = secret
        self._protocol: UpstreamProtocol | None = protocol
        self.origin = protocol.origin
        self.reused = protocol.reused
        """The connection has served another request before."""

    def send(self, head: bytes, body: bytes, sink: ResponseSink) -> None:
        """Send the request; `head` is complete, with its empty line. The sink is never called from within."""
        if self._protocol is None:
            raise RuntimeError("this connection has served its request; take another one from the pool")
        if self._secret:
            sink = MaskedSink(sink, self._secret)
        self._protocol.send(head, body, sink)

    def abort(self) -> None:
        """Close at once: the upstream sees its client leave, the sink hears nothing any more. Does nothing later on."""
        if self._protocol is not None:
            self._protocol.abort()

    def pause_reading(self) -> None:
        """Take no more of the answer for now."""
        if self._protocol is not None:
            self._protocol.pause_reading()

    def resume_reading(self) -> None:
        """Take more of the answer again."""
        if self._protocol is not None:
            self._protocol.resume_reading()

    def end(self) -> None:
        """The exchange is over (called by the connection)."""
        self._protocol = None


class UpstreamProtocol(asyncio.Protocol):
    """A connection that the pool made. One exchange at a time; goes back to the pool by itself after `on_end`."""

    __slots__ = (
        "_between_chunks",
        "_chunked",
        "_complete",
        "_head_bytes",
        "_head_only",
        "_head_ready",
        "_head_sent",
        "_headers",
        "_hold",
        "_interim",
        "_keep_alive",
        "_loop",
        "_on_chunk",
        "_parser",
        "_parts",
        "_paused",
        "_pool",
        "_received",
        "_sink",
        "_status",
        "_surplus",
        "_transport",
        "_until_eof",
        "idle_since_s",
        "made_s",
        "origin",
        "reused",
    )

    def __init__(self, pool: ConnectionPool, origin: Origin, loop: asyncio.AbstractEventLoop):
        self._pool = pool
        self._loop = loop
        self.origin = origin
        self.reused = False
        """It has served another request before."""
        self.idle_since_s = 0.0
        self.made_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._sink: ResponseSink | None = None
        self._hold: UpstreamConnection | None = None
        self._paused = False
        self._parts: list[bytes] = []
        self._on_chunk: Callable[[bytes, bytes], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._head_only = False
        self._head_ready = False
        self._head_sent = False
        self._complete = False
        self._keep_alive = False
        self._until_eof = False
        self._surplus = False
        self._received = False
        self._interim = 0
        self._chunked = False
        self._between_chunks = False

    # ---- what the pool and holders use

    def hold(self, secret: tuple[bytes, ...] = ()) -> UpstreamConnection:
        """Take it for one request; forms of a secret are masked in the answer."""
        self._hold = UpstreamConnection(self, secret)
        return self._hold

    def send(self, head: bytes, body: bytes, sink: ResponseSink) -> None:
        """Send a request."""
        if self._sink is not None:
            raise RuntimeError("the connection is still busy with another exchange; take another one from the pool")
        self._sink = sink
        self._on_chunk = getattr(sink, "on_chunk", None)
        self._head_only = head.startswith(b"HEAD ")
        transport = self._transport
        try:
            if transport is None or transport.is_closing():
                raise RuntimeError("closed")
            if len(body) <= _JOIN_BYTES:
                transport.write(head + body)
            else:
                transport.writelines((head, body))
        except RuntimeError:
            self._loop.call_soon(self._fail_closed, sink)

    def abort(self) -> None:
        """Close at once, without a word to the sink."""
        self._end_hold()
        if self._transport is not None:
            self._transport.abort()

    def cut(self) -> None:
        """Close at once; unlike after `abort`, the sink of an exchange in flight hears of it."""
        self._ended(ConnectionAbortedError("cut here"))
        self.abort()

    def _end_hold(self) -> None:
        self._sink = self._on_chunk = None
        self._between_chunks = False
        if self._hold is not None:
            self._hold.end()
            self._hold = None

    def pause_reading(self) -> None:
        """Take no more of the answer for now."""
        transport = self._transport
        if not self._paused and self._sink is not None and transport is not None and not transport.is_closing():
            self._paused = True
            transport.pause_reading()

    def resume_reading(self) -> None:
        """Take more of the answer again."""
        transport = self._transport
        if self._paused:
            self._paused = False
            if transport is not None and not transport.is_closing():
                transport.resume_reading()

    @property
    def usable(self) -> bool:
        """Open, and free for a request."""
        return self._sink is None and self._transport is not None and not self._transport.is_closing()

    # ---- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        stream = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._transport = stream
        keep_alive(stream, also_unread=True)

    def data_received(self, data: bytes) -> None:
        """Bytes of the upstream."""
        if not self._between_chunks:
            self._parse(data)
            return
        # Most reads of a slow stream are one chunk. The parser is between two and needs not know of it.
        size = len(data)
        head = _CHUNK_HEADS[size] if size < _LONGEST_CHUNK_BYTES else None
        if head is None or not data.startswith(head) or not data.endswith(b"\r\n"):
            self._parse(data)
            return
        try:
            if self._on_chunk is not None:
                self._on_chunk(data[len(head) : -2], data)
            elif self._sink is not None:
                self._sink.on_data(data[len(head) : -2])
        except Exception:
            self._sink_failed()

    def _parse(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.abort()  # idle: bytes that nobody asked for
            return
        self._received = True
        error: UpstreamError | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            error = UpstreamProtocolError(f"{self.origin} switched protocols, which was not asked for")
        except httptools.HttpParserError as fault:
            reason = fault.__context__ if isinstance(fault.__context__, UpstreamError) else fault
            error = UpstreamProtocolError(f"{self.origin} sent a malformed answer: {reason}")
        if not self._head_ready and error is None:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                error = UpstreamProtocolError(f"{self.origin} sent more than {_MAX_HEAD_BYTES} bytes of headers")
        self._between_chunks = self._chunked and error is None and self._ends_between_chunks(data)
        self._deliver(sink, error)

    def _ends_between_chunks(self, data: bytes) -> bool:
        """Whether it is certain that `data` ended a chunk, or the head, and nothing has come behind it.

        A size line has a digit before its line end, so it is none that `data` ends with here. If a chunk is incomplete,
        `data` ends with what came of it. Where neither can be told, the parser just goes on.
        """
        if not data.endswith(b"\n\r\n"):
            return False
        return not data.endswith(self._parts[-1]) if self._parts else not self._head_sent

    def eof_received(self) -> None:
        """The upstream has closed its side."""
        self._ended(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._pool.lost(self)
        self._ended(exc)

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        """Parser: an answer begins."""
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header field, or a trailer, which is dropped."""
        if not self._head_ready:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_interim()
            return
        self._status = status
        coding = length = None
        for name, value in self._headers:
            if name == b"transfer-encoding":
                if coding is not None:
                    raise UpstreamProtocolError("transfer-encoding is given twice")
                coding = value
            elif name == b"content-length":
                length = value
        if coding is not None and coding.lower() != b"chunked":
            raise UpstreamProtocolError(f"transfer-encoding {coding!r} is not known, only chunked is")
        self._until_eof = coding is None and length is None and status not in (204, 304) and not self._head_only
        self._head_ready = True
        self._chunked = coding is not None and not self._head_only
        if self._head_only:
            self._complete = True  # the parser can't be told that no body follows: it serves no other exchange

    def _skip_interim(self) -> None:
        self._headers = []
        self._interim += 1
        if self._interim > _MAX_INTERIM:
            raise UpstreamProtocolError("too many interim answers")

    def on_body(self, body: bytes) -> None:
        """Parser: body bytes."""
        if self._head_only or self._complete:
            self._surplus = True
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Parser: the answer is complete."""
        if not self._head_ready:
            return  # an interim answer
        if self._complete:
            self._surplus = True
            return
        self._complete = True
        self._chunked = False
        self._keep_alive = self._parser.should_keep_alive()

    # ---- handing over

    def _deliver(self, sink: ResponseSink, error: UpstreamError | None) -> None:
        try:
            if self._head_ready and not self._head_sent:
                self._head_sent = True
                sink.on_head(self._status, tuple(self._headers))
                if self._sink is not sink:
                    return
            parts = self._parts
            if parts:
                data = parts[0] if len(parts) == 1 else b"".join(parts)
                parts.clear()
                sink.on_data(data)
                if self._sink is not sink:
                    return
        except Exception:
            logger.exception("taking an answer of %s failed", self.origin)
            error = UpstreamError("internal error while taking the answer; the log says more")
            self._complete = False
        if self._complete:
            self._finish(sink, self._keep_alive and not self._surplus and error is None)
        elif error is not None:
            self._fail(sink, error)

    def _sink_failed(self) -> None:
        logger.exception("taking an answer of %s failed", self.origin)
        if self._sink is not None:
            self._fail(self._sink, UpstreamError("internal error while taking the answer; the log says more"))

    def _finish(self, sink: ResponseSink, keep_alive: bool) -> None:
        self._end_hold()
        transport = self._transport
        if transport is not None and not transport.is_closing():
            if keep_alive and not transport.get_write_buffer_size():
                self._reset()
                self.reused = True
                self.resume_reading()
                self._pool.released(self)
            else:
                transport.abort()
        self._tell(sink, None)

    def _fail(self, sink: ResponseSink, error: UpstreamError) -> None:
        self.abort()
        self._parts.clear()
        self._tell(sink, error)

    def _fail_closed(self, sink: ResponseSink) -> None:
        if self._sink is sink:
            self._fail(sink, self._closed(None))

    def _ended(self, exc: Exception | None) -> None:
        sink = self._sink
        if sink is None:
            return
        if self._until_eof and self._head_sent and exc is None:
            self._finish(sink, keep_alive=False)
        else:
            self._fail(sink, self._closed(exc))

    def _closed(self, exc: Exception | None) -> UpstreamClosed:
        when = "in the middle of its answer" if self._received else "before it answered"
        why = f" ({exc})" if exc is not None else ""
        return UpstreamClosed(
            f"{self.origin} closed the connection {when}{why}", reused=self.reused, received=self._received
        )

    def _tell(self, sink: ResponseSink, error: UpstreamError | None) -> None:
        # the sink belongs to another stream: its failure must not end this connection's callback
        try:
            if error is None:
                sink.on_end()
            else:
                sink.on_error(error)
        except Exception:
            logger.exception("ending an answer of %s failed", self.origin)
