"""Header fields: a tuple of (name, value) pairs, names lower-cased, order and duplicates kept."""

from __future__ import annotations

from collections.abc import Iterable

Headers = tuple[tuple[bytes, bytes], ...]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Fields that speak about one connection only (RFC 9110, 7.6.1) and are never passed on."""


def first_value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Value of the first field called `name` (lower-case)."""
    for key, value in headers:
        if key == name:
            return value
    return None


def connection_tokens(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Lower-cased names that the `connection` fields list: they are hop-by-hop in this message."""
    tokens = (token for name, value in headers if name == b"connection" for token in value.split(b","))
    return frozenset(token.strip().lower() for token in tokens) - {b""}


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The fields that may be passed on, without hop-by-hop ones and `content-length`, in their order."""
    listed = tuple(headers)
    dropped = HOP_BY_HOP | {b"content-length"} | connection_tokens(listed)
    return [field for field in listed if field[0] not in dropped]


def field_lines(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> bytes:
    """`name: value` lines, each with CRLF, of all fields whose name is not in `dropped`.

    Raises ValueError when a name or value holds CR, LF or NUL: it would forge another field.
    """
    lines = [b"%b: %b\r\n" % field for field in headers if field[0] not in dropped]
    block = b"".join(lines)
    count = len(lines)
    if block.count(b"\n") != count or block.count(b"\r") != count or b"\0" in block:
        bad = next(field for field in headers if any(c in part for c in (b"\r", b"\n", b"\0") for part in field))
        raise ValueError(f"header field {bad[0]!r} holds CR, LF or NUL: {bad[1]!r}; remove it")
    return block
