"""Edits of request bodies as bytes: one member changes, every other byte stays."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.wire.json_part import part_start

__all__ = ["ensure_stream_usage", "wants_usage", "with_token_ids"]

T = TypeVar("T")

_TRUE = frozenset(("true", "t", "yes", "y", "on", "1"))
_ASKS = b'{"include_usage":true}'
_OPENING = re.compile(rb"[ \t\r\n]*+\{")
_EMPTY = re.compile(rb"[ \t\r\n]*+\}")


class _IncludeUsage(msgspec.Struct):
    include_usage: bool | int | float | str | None = None


class _RawIncludeUsage(msgspec.Struct):
    include_usage: Raw | UnsetType = UNSET


class _RawStreamOptions(msgspec.Struct):
    stream_options: Raw | UnsetType = UNSET


_options = msgspec.json.Decoder(_IncludeUsage)
_raw_options = msgspec.json.Decoder(_RawIncludeUsage)
_raw_body = msgspec.json.Decoder(_RawStreamOptions)


def ensure_stream_usage(body: bytes) -> bytes:
    """Set `stream_options.include_usage` to true, so that the engine tells the usage of a stream.

    Other members of `stream_options` stay; of one that is given twice the last counts, as it does for readers of JSON.
    Raises ValueError for broken JSON, and for a `stream_options` that is neither an object nor null.
    """
    options = _stream_options(body)
    if options is None:
        return _insert(body, b"stream_options", _ASKS)
    value = bytes(options)
    if value == b"null":
        return _replace(body, options, _ASKS)
    if value[:1] != b"{":
        raise ValueError("stream_options: expected an object or null")
    return _replace(body, options, _asking(value))


def with_token_ids(body: bytes, given: Raw | UnsetType) -> bytes:
    """Set `return_token_ids` to true; `given` is the member's value in this body, if it has one."""
    if isinstance(given, Raw):
        return _replace(body, given, b"true")
    return _insert(body, b"return_token_ids", b"true")


def wants_usage(stream_options: Raw) -> bool:
    """Whether the value of `stream_options` asks for usage, read as leniently as engines do."""
    try:
        options = _options.decode(stream_options)
    except (msgspec.MsgspecError, RecursionError):
        return False
    value = options.include_usage
    return value.lower() in _TRUE if isinstance(value, str) else value == 1


def _stream_options(body: bytes) -> Raw | None:
    """The value of the top-level member, None where there is none."""
    # the name could be written with escapes, which only parsing finds
    if b"stream_options" not in body and b"\\u" not in body:
        return None
    options = _decode(_raw_body, body).stream_options
    return options if isinstance(options, Raw) else None


def _asking(options: bytes) -> bytes:
    asked = _decode(_raw_options, options).include_usage
    if isinstance(asked, Raw):
        return _replace(options, asked, b"true")
    return _insert(options, b"include_usage", b"true")


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("the body is not usable JSON: it is nested too deeply; send flatter JSON") from None


def _replace(text: bytes, part: Raw, value: bytes) -> bytes:
    start = part_start(text, part)
    view = memoryview(text)
    return b"".join((view[:start], value, view[start + len(memoryview(part)) :]))


def _insert(text: bytes, name: bytes, value: bytes) -> bytes:
    opening = _OPENING.match(text)
    if opening is None:
        raise ValueError("the body is not a JSON object; it must start with '{'")
    start = opening.end()
    comma = b"" if _EMPTY.match(text, start) is not None else b","
    view = memoryview(text)
    return b"".join((view[:start], b'"%b":%b%b' % (name, value, comma), view[start:]))
