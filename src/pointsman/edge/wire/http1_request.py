"""A request as it came from a client, whole."""

from __future__ import annotations

from pointsman.edge.wire.headers import Headers, first_value


class IncomingRequest:
    """One parsed request with its whole body."""

    __slots__ = ("body", "headers", "method", "path", "peer", "query", "target")

    def __init__(self, method: str, target: bytes, headers: Headers, body: bytes, peer: str):
        self.method = method
        self.target = target
        """The request target as sent."""
        self.path, self.query = split_target(target)
        self.headers = headers
        self.body = body
        self.peer = peer
        """`address:port` of the client."""

    @property
    def origin_form(self) -> bytes:
        """The target as an origin server gets it: path and query, without the scheme and host of an absolute form."""
        target = self.target
        if target.startswith(b"/") or b"://" not in target:
            return target
        text = f"{self.path}?{self.query}" if b"?" in target else self.path
        return text.encode("latin-1")

    def header(self, name: bytes) -> bytes | None:
        """First value of a header field, `name` in lower case."""
        return first_value(self.headers, name)

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} from {self.peer}, {len(self.body)} body bytes>"


def split_target(target: bytes) -> tuple[str, str]:
    """Path and query of a request target, percent-encoding left as it is; takes the absolute form too."""
    text = target.decode("latin-1")
    if not text.startswith("/") and "://" in text:
        rest = text.split("://", 1)[1]
        cut = min((i for i in (rest.find("/"), rest.find("?")) if i >= 0), default=len(rest))
        text = rest[cut:]
        if not text.startswith("/"):
            text = "/" + text
    path, _, query = text.partition("?")
    return path, query
