"""Reading requests: bytes in, whole requests out, and a refusal for whatever two readers could take differently."""

from __future__ import annotations

import logging
from typing import Protocol

import httptools

from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_limits import ServerLimits
from pointsman.edge.wire.http1_request import IncomingRequest

logger = logging.getLogger("pointsman.wire")

_CHECKED = frozenset((b"host", b"content-length", b"content-encoding", b"transfer-encoding", b"expect"))
_TAKEN_UNASKED_BYTES = 64 * 1024
"""Longest body that is read before anybody asks who sends it."""


class RequestOwner(Protocol):
    """Who hears what was read."""

    def head_begun(self) -> None:
        """The first byte of a request has come."""

    def refusal_of(self, headers: Headers) -> tuple[int, str] | None:
        """Status and message for a head whose body, a long one, is not to be read; None: it is."""

    def continue_expected(self) -> None:
        """The client waits for `100 Continue` before it sends the body."""

    def has_room(self, size: int) -> bool:
        """Whether a body of so many bytes could be held now."""

    def body_coming(self, size: int) -> bool:
        """So many bytes of a body came and will be held; False: the server holds too many already."""

    def request_read(self, request: IncomingRequest, *, http10: bool, keep_alive: bool) -> None:
        """A request is complete."""

    def refused(self, status: int, message: str) -> None:
        """What came is not a proper request; nothing more can be read."""


class _Refused(Exception):  # noqa: N818  (it never leaves this file)
    """Stops the parser."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


class RequestReader:
    """Parses one connection's requests. It is the parser's own callback object, for speed."""

    __slots__ = (
        "_began",
        "_body",
        "_checked",
        "_chunked",
        "_head_bytes",
        "_headers",
        "_idle_bytes",
        "_limits",
        "_owner",
        "_parser",
        "_refusal",
        "_target",
        "_upgrade",
        "body_bytes",
        "body_left",
        "in_body",
        "in_head",
        "peer",
    )

    def __init__(self, owner: RequestOwner, limits: ServerLimits):
        self._owner = owner
        self._limits = limits
        self.peer = ""
        """Address of the client."""
        self._parser = httptools.HttpRequestParser(self)
        self._refusal: _Refused | None = None
        self._began = False
        self.reset()

    def reset(self) -> None:
        """Forget what was read of an incomplete request."""
        self.in_head = False
        """In the middle of a head."""
        self.in_body = False
        """In the middle of a body."""
        self.body_bytes = 0
        """Body bytes read so far."""
        self.body_left = 0
        """Body bytes that are known to be still missing."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._checked: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._idle_bytes = 0
        self._body: bytes | bytearray = b""
        self._chunked = False
        self._upgrade = False

    @property
    def reading(self) -> bool:
        """In the middle of a request."""
        return self.in_head or self.in_body

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Read on."""
        rest: bytes | bytearray | memoryview | None = data
        while rest is not None:
            rest = self._parse(rest)

    def _parse(self, data: bytes | bytearray | memoryview) -> bytes | None:
        """Parse; returns bytes that are to be parsed anew."""
        self._began = False
        body_bytes = self.body_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserCallbackError:
            if self._refusal is None:
                logger.exception("parsing a request of %s failed", self.peer)
            self._refuse(self._refusal or _Refused(500, "internal error; the log says more"))
        except httptools.HttpParserError as error:
            self._refuse(_Refused(*self._explain(str(error))))
        else:
            if not self._began:
                self._check_overhead(len(data), self.body_bytes > body_bytes)
        return None

    def _check_overhead(self, size: int, body_grew: bool) -> None:
        """Bound what the parser holds of a field that is not complete, in a head or a trailer."""
        if self.in_head:
            self._head_bytes += size
            if self._head_bytes > 2 * self._limits.max_head_bytes:
                self._refuse(self._head_too_large())
        elif self._chunked and not body_grew:
            self._idle_bytes += size
            if self._idle_bytes > self._limits.max_head_bytes:
                self._refuse(_Refused(431, "request body: its chunk extensions and trailers are too large; send less"))

    def _refuse(self, refusal: _Refused) -> None:
        self.reset()
        self._owner.refused(refusal.status, refusal.message)

    def _explain(self, reason: str) -> tuple[int, str]:
        """Status and message for what the parser says."""
        if reason == "Invalid HTTP version":
            return 505, f"request line: {reason}; use HTTP/1.1"
        if "PRI" in reason:
            return 505, "request line: HTTP/2 is not spoken here; use HTTP/1.1"
        if self.in_body:
            return 400, f"request body: {reason}"
        if self._headers:
            # Their number, not the last one's name: where a length was wrong, it may be a part of a prompt.
            return 400, f"request header: {reason} (after {len(self._headers)} good ones)"
        about_field = any(word in reason for word in ("eader", "Content-Length", "Transfer-Encoding"))
        return 400, f"request {'header' if about_field and self.in_head else 'line'}: {reason}"

    def _head_too_large(self) -> _Refused:
        limits = self._limits
        return _Refused(
            431, f"request header: more than {limits.max_head_bytes} bytes or {limits.max_headers} fields; send less"
        )

    def _body_too_large(self, size: int) -> _Refused:
        return _Refused(413, f"request body: {size} bytes are more than the {self._limits.max_body_bytes} allowed")

    def _no_room(self) -> _Refused:
        return _Refused(503, "the bodies of requests in flight fill the memory set aside for them; try again later")

    def _stop(self, refusal: _Refused) -> _Refused:
        self._refusal = refusal
        return refusal

    def _without_upgrade(self, rest: bytes) -> bytes | None:
        """The request again without its `upgrade` field, which a server may ignore (RFC 9110, 7.8)."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(_Refused(405, "request line: CONNECT is not served here"))
            return None
        fields = [f for f in self._headers if f[0] != b"upgrade"]
        version = self._parser.get_http_version().encode()
        lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._target, version, lines)
        self.reset()
        self._parser = httptools.HttpRequestParser(self)
        return head + rest

    # ---- parser callbacks

    def on_message_begin(self) -> None:
        """Parser: the first byte of a request."""
        self.reset()
        self.in_head = self._began = True
        self._owner.head_begun()

    def on_url(self, url: bytes) -> None:
        """Parser: request target, or a part of it."""
        self._target += url
        if len(self._target) > self._limits.max_head_bytes:
            raise self._stop(
                _Refused(414, f"request line: the target is longer than {self._limits.max_head_bytes} bytes")
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: one header field, or a trailer, which is dropped."""
        if not self.in_head:
            return
        name = name.lower()
        value = value.rstrip(b" \t")
        self._head_bytes += len(name) + len(value)
        headers = self._headers
        headers.append((name, value))
        limits = self._limits
        if self._head_bytes > limits.max_head_bytes or len(headers) > limits.max_headers:
            raise self._stop(self._head_too_large())
        if name in _CHECKED:
            if name in self._checked and name != b"expect":
                raise self._stop(_Refused(400, f"request header {name.decode()!r} is given twice; send it once"))
            self._checked[name] = value

    def on_headers_complete(self) -> None:
        """Parser: the head is complete."""
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._stop(_Refused(505, f"request line: HTTP/{version} is not spoken here; use HTTP/1.1"))
        checked = self._checked
        if version == "1.1" and b"host" not in checked:
            raise self._stop(_Refused(400, "request header 'host' is missing; HTTP/1.1 needs it"))
        self.in_head = False
        self._upgrade = self._parser.should_upgrade()
        if self._upgrade:
            return
        self.in_body = True
        coding = checked.get(b"content-encoding", b"identity")
        if coding.lower() != b"identity":
            raise self._stop(_Refused(415, "request header 'content-encoding': bodies are taken uncompressed only"))
        encoding = checked.get(b"transfer-encoding")
        if encoding is not None:
            if encoding.lower() != b"chunked" or version == "1.0":
                raise self._stop(_Refused(400, "request header 'transfer-encoding': only chunked is known"))
            self._chunked = True
        length = int(checked.get(b"content-length", b"0"))
        if length > self._limits.max_body_bytes:
            raise self._stop(self._body_too_large(length))
        self.body_left = length
        if self._chunked or length > _TAKEN_UNASKED_BYTES:
            refusal = self._owner.refusal_of(tuple(self._headers))
            if refusal is not None:
                raise self._stop(_Refused(*refusal))
        if length and not self._owner.has_room(length):
            raise self._stop(self._no_room())
        if b"expect" in checked:
            self._check_expectation(checked[b"expect"], version)

    def _check_expectation(self, expectation: bytes, version: str) -> None:
        if expectation.lower() != b"100-continue":
            raise self._stop(_Refused(417, "request header 'expect': only 100-continue is known"))
        if version == "1.1" and (self._chunked or self.body_left):
            self._owner.continue_expected()

    def on_body(self, body: bytes) -> None:
        """Parser: body bytes."""
        size = len(body)
        held = self.body_bytes
        if not held:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            # not a list of pieces: a body in chunks of one byte would take fifty times its size
            self._body = bytearray(self._body) + body
        self.body_bytes = held + size
        self._idle_bytes = 0
        if self._chunked:
            if self.body_bytes > self._limits.max_body_bytes:
                raise self._stop(self._body_too_large(self.body_bytes))
        else:
            self.body_left -= size
        # As it comes: who announces much and sends nothing must not take the room of the others.
        if not self._owner.body_coming(size):
            raise self._stop(self._no_room())

    def on_message_complete(self) -> None:
        """Parser: the request is complete."""
        if self._upgrade:
            return
        parser = self._parser
        headers: Headers = tuple(self._headers)
        method = parser.get_method().decode("ascii")
        request = IncomingRequest(method, self._target, headers, bytes(self._body), self.peer)
        http10, keep_alive = parser.get_http_version() == "1.0", parser.should_keep_alive()
        self.reset()
        self._owner.request_read(request, http10=http10, keep_alive=keep_alive)
