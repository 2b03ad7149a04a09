"""Edits of request bodies as bytes: one member changes, every other byte stays."""

from __future__ import annotations

import msgspec

from pointsman.edge.wire.json_scan import object_start, top_level_spans

__all__ = ["client_wants_usage", "ensure_stream_usage", "set_member", "top_level_spans", "top_level_value"]

_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))


class _StreamOptions(msgspec.Struct):
    include_usage: bool | int | float | str | None = None


class _WithStreamOptions(msgspec.Struct):
    stream_options: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_options_decoder = msgspec.json.Decoder(_StreamOptions)
_body_decoder = msgspec.json.Decoder(_WithStreamOptions)


def top_level_value(body: bytes, name: str) -> bytes | None:
    """Raw JSON of a top-level member, None if there is none. Raises ValueError for broken JSON."""
    span = top_level_spans(body).get(name)
    return body[span[0] : span[1]] if span is not None else None


def set_member(body: bytes, name: str, value: bytes) -> bytes:
    """Set one top-level member to raw JSON. Raises ValueError for broken JSON."""
    span = top_level_spans(body).get(name)
    if span is None:
        return _insert(body, name, value)
    return body[: span[0]] + value + body[span[1] :]


def ensure_stream_usage(body: bytes, *, absent: bool = False) -> bytes:
    """Set `stream_options.include_usage` to true, so that the engine tells the usage of a stream.

    Other members of `stream_options` stay. `absent`: the caller knows from parsing that there is none, which saves the
    search. Raises ValueError for broken JSON, or for a `stream_options` that is neither
    an object nor null.
    """
    if absent or not _may_have_stream_options(body):
        return _insert(body, "stream_options", b'{"include_usage":true}')
    span = top_level_spans(body).get("stream_options")
    if span is None:
        return _insert(body, "stream_options", b'{"include_usage":true}')
    value = body[span[0] : span[1]]
    if value == b"null":
        value = b'{"include_usage":true}'
    elif value[:1] == b"{":
        value = set_member(value, "include_usage", b"true")
    else:
        raise ValueError("stream_options: expected an object or null")
    return body[: span[0]] + value + body[span[1] :]


def client_wants_usage(body: bytes) -> bool:
    """Whether the body asks for a usage event itself."""
    if not _may_have_stream_options(body):
        return False
    try:
        options = _body_decoder.decode(body).stream_options
        return isinstance(options, msgspec.Raw) and wants_usage(options)
    except (msgspec.MsgspecError, RecursionError):
        return False


def wants_usage(stream_options: msgspec.Raw) -> bool:
    """Whether the value of `stream_options` asks for usage, read as leniently as engines do."""
    try:
        options = _options_decoder.decode(stream_options)
    except msgspec.MsgspecError:
        return False
    value = options.include_usage
    return value.lower() in _TRUE if isinstance(value, str) else value == 1


def _may_have_stream_options(body: bytes) -> bool:
    # the name could be written with escapes, which only a scan finds
    return b"stream_options" in body or b"\\u" in body


def _insert(body: bytes, name: str, value: bytes) -> bytes:
    start = object_start(body)
    empty = body[start:].lstrip(b" \t\r\n")[:1] == b"}" if body[start : start + 1] != b'"' else False
    member = b'"%b":%b' % (name.encode(), value)
    return b"%b%b%b%b" % (body[:start], member, b"" if empty else b",", body[start:])
