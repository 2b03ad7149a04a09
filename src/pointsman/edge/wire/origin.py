"""Origin: where an upstream listens, and the head of a request to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pointsman.edge.wire.headers import HOP_BY_HOP, connection_tokens, field_lines

_PORTS = {"http": 80, "https": 443}
_OURS = HOP_BY_HOP | {b"content-length", b"expect", b"host"}
_PLAIN_CONNECTION = frozenset((b"keep-alive", b"close"))


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Origin:
        """The origin of a URL, whose path is ignored. Raises ValueError that says what is wrong."""
        parts = urlsplit(url)
        if parts.scheme not in _PORTS:
            raise ValueError(f"{url!r}: the scheme must be http or https, as in http://127.0.0.1:8000")
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}; give host and port as in http://127.0.0.1:8000") from None
        if not host:
            raise ValueError(f"{url!r}: the host is missing, as in http://127.0.0.1:8000")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme])

    @property
    def host_header(self) -> bytes:
        """Value of the `host` field: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        text = host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"
        return text.encode("idna" if not text.isascii() else "ascii")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def request_head(
    method: bytes, target: bytes, origin: Origin, headers: Iterable[tuple[bytes, bytes]], body_length: int
) -> bytes:
    """A complete request head. Hop-by-hop and framing fields among `headers` are dropped; names are in lower case.

    Raises ValueError when a name, a value or the target holds CR, LF or NUL.
    """
    fields = headers if isinstance(headers, tuple | list) else tuple(headers)
    dropped = _OURS
    listed = connection_tokens(fields)
    if listed - _PLAIN_CONNECTION:
        dropped = dropped | listed
    if any(c in target for c in b" \r\n\0"):
        raise ValueError(f"request target {target!r} holds a space, CR, LF or NUL; percent-encode it")
    length = b"content-length: %d\r\n" % body_length if body_length or method not in (b"GET", b"HEAD") else b""
    lines = field_lines(fields, dropped)
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (method, target, origin.host_header, lines, length)
