"""Heads of requests to engines: the client's headers without those that are between it and us."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.edge.serving.engine_links import EngineLink
from pointsman.edge.wire.headers import Headers

_NOT_FORWARDED = frozenset(
    (
        # between two neighbours (RFC 9110, section 7.6.1)
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        # made anew
        b"content-length",
        b"expect",
        b"host",
        b"x-request-id",
        # the client's secrets are for us, not for the engine
        b"authorization",
        b"cookie",
        b"api-key",
        b"x-api-key",
        # usage is found in the bytes of the answer, which must not be compressed
        b"accept-encoding",
        # read here
        b"x-pointsman-explain",
        b"x-pointsman-worker",
    )
)


def engine_headers(client: Headers, request_id: bytes, link: EngineLink) -> Iterator[tuple[bytes, bytes]]:
    """The headers for the engine. What the client's `connection` header names stays here, too."""
    dropped = _NOT_FORWARDED
    if link.rank is not None:
        dropped = dropped | {link.rank[0]}
    for name, value in client:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped | {token.strip().lower() for token in value.split(b",")}
    for header in client:
        if header[0] not in dropped:
            yield header
    yield b"x-request-id", request_id
    if link.rank is not None:
        yield link.rank
    if link.api_key is not None:
        yield b"authorization", b"Bearer " + link.api_key.encode()
