"""Header fields: a tuple of (name, value) pairs, names lower-cased, order and duplicates kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Headers = tuple[tuple[bytes, bytes], ...]

NOT_PASSED_ON = frozenset(
    (
        # they speak about one connection only (RFC 9110, 7.6.1)
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        # made anew for the next message
        b"content-length",
        b"expect",
        b"host",
    )
)
"""Fields that never go on to the next neighbour."""

RATE_LIMIT_HEADERS = (
    b"x-ratelimit-limit-requests",
    b"x-ratelimit-remaining-requests",
    b"x-ratelimit-reset-requests",
    b"x-ratelimit-limit-tokens",
    b"x-ratelimit-remaining-tokens",
    b"x-ratelimit-reset-tokens",
)
"""What is left of a client's limits; those of one server say nothing of another one's."""

_PLAIN_CONNECTION = frozenset((b"keep-alive", b"close"))


def first_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Value of the first field called `name` (lower-case)."""
    for key, value in headers:
        if key == name:
            return value
    return None


def passed_on(
    headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes] = NOT_PASSED_ON
) -> list[tuple[bytes, bytes]]:
    """The fields that may go on, in their order: none of `dropped`, and none that a `connection` field names.

    `dropped` is `NOT_PASSED_ON` and what else the caller keeps to itself.
    """
    fields = headers if isinstance(headers, tuple) else tuple(headers)
    for name, value in fields:
        if name == b"connection" and value.lower() not in _PLAIN_CONNECTION:
            dropped = dropped | {token.strip().lower() for token in value.split(b",")}
    return [field for field in fields if field[0] not in dropped]


def field_lines(headers: Sequence[tuple[bytes, bytes]], dropped: frozenset[bytes] = frozenset()) -> bytes:
    """`name: value` lines, each with CRLF, of all fields whose name is not in `dropped`.

    Raises ValueError when a name or value holds CR, LF or NUL: it would forge another field.
    """
    fields = [field for field in headers if field[0] not in dropped] if dropped else headers
    if not fields:
        return b""
    block = b"\r\n".join(map(b": ".join, fields)) + b"\r\n"
    count = len(fields)
    if block.count(b"\n") != count or block.count(b"\r") != count or b"\0" in block:
        bad = next(field for field in fields if any(c in part for c in (b"\r", b"\n", b"\0") for part in field))
        raise ValueError(f"header field {bad[0]!r} holds CR, LF or NUL; remove it")
    return block
