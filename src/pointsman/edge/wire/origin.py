"""Origin: where an upstream listens, and the head of a request to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pointsman.edge.wire.headers import field_lines

_PORTS = {"http": 80, "https": 443}
_NOT_IN_TARGET = re.compile(rb"[ \r\n\0]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int
    host_header: bytes = field(init=False, repr=False, compare=False)
    """Value of the `host` field: the port only where it is not the scheme's own."""

    def __post_init__(self) -> None:
        text = self._host if self.port == _PORTS[self.scheme] else f"{self._host}:{self.port}"
        object.__setattr__(self, "host_header", text.encode("ascii" if text.isascii() else "idna"))

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
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.scheme}://{self._host}:{self.port}"


def request_head(
    method: bytes, target: bytes, origin: Origin, headers: Sequence[tuple[bytes, bytes]], body_length: int
) -> bytes:
    """A complete request head: `host` and `content-length` are made here, `headers` go out as they are.

    Those of another message come through `passed_on` first, which drops what must not go on.
    Raises ValueError when a name, a value or the target holds CR, LF or NUL.
    """
    if _NOT_IN_TARGET.search(target) is not None:
        raise ValueError(f"request target {target!r} holds a space, CR, LF or NUL; percent-encode it")
    length = b"content-length: %d\r\n" % body_length if body_length or method not in (b"GET", b"HEAD") else b""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%b%b\r\n" % (
        method, target, origin.host_header, field_lines(headers), length,
    )  # fmt: skip
