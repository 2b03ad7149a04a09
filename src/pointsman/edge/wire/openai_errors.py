"""What is wrong with a request's JSON, said so that its author finds it."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from pointsman.edge.wire.errors import BadRequest
from pointsman.edge.wire.json_part import part_start

T = TypeVar("T")

_PATH = re.compile(r" - at `\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAMES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}
_BYTE = re.compile(r"\(byte (\d+)\)")
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_HIGH_AND_OTHER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u(?![dD][c-fC-F])")
_HALF_NEAR_END = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}(?=[^\\]|\\[^u])")
_NEWLINE = b"\n"
_PIECE_BYTES = 256 * 1024
_QUOTED = re.compile(r"`([^`]*)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a JSON body. Raises BadRequest."""
    if not body or body.isspace():
        raise BadRequest(400, "the body is empty; send a JSON object", code="invalid_json")
    _check_utf8(body)
    return _decode(decoder, body, "", body)


def decode_part(decoder: msgspec.json.Decoder[T], part: msgspec.Raw, name: str, body: bytes) -> T:
    """Decode the value of the field `name`, a part of a body that `decode` has taken. Raises BadRequest."""
    return _decode(decoder, part, name, body)


def _decode(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw, parent: str, body: bytes) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), parent) from None
    except msgspec.DecodeError as error:
        start = part_start(body, text) if isinstance(text, msgspec.Raw) else 0
        message = _malformed(str(error), body, start, start + len(memoryview(text)))
        raise BadRequest(400, f"the body is not valid JSON: {message}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest(400, "the body is nested too deeply; send flatter JSON", code="invalid_json") from None


def _check_utf8(body: bytes) -> None:
    """In pieces that fit a processor's cache: the text of a large body would take up to four times its size."""
    if body.isascii():
        return
    view = memoryview(body)
    at = 0
    while at < len(body):
        end = at + _PIECE_BYTES
        while end < len(body) and body[end] & 0xC0 == 0x80 and end > at + _PIECE_BYTES - 4:
            end -= 1  # a character must not be cut
        try:
            str(view[at:end], "utf-8")
        except UnicodeDecodeError as error:
            message = f"the body is not valid UTF-8: {error.reason} at byte {at + error.start}"
            raise BadRequest(400, message, code="invalid_json") from None
        at = end


def _wrong_type(text: str, parent: str) -> BadRequest:
    path = parent
    match = _PATH.search(text)
    if match is not None:
        path = (parent + match.group(1)).lstrip(".")
        text = text[: match.start()]
    missing = _MISSING.search(text)
    if missing is not None:
        path = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return BadRequest(400, f"{path}: this field is required and missing", path, "missing_required_parameter")
    text = _QUOTED.sub(_plain_names, text)
    text = text[:1].lower() + text[1:]
    return BadRequest(400, f"{path}: {text}" if path else f"the body: {text}", path or None, "invalid_type")


def _plain_names(match: re.Match[str]) -> str:
    parts = match.group(1).split(" | ")
    return " or ".join(_NAMES.get(part, part) for part in parts)


def _malformed(text: str, body: bytes, start: int, end: int) -> str:
    """What the decoder says of `body[start:end]`, with the place in the whole body."""
    match = _BYTE.search(text)
    at = start + int(match.group(1)) if match is not None else end
    escape_at = _unpaired_surrogate(body, at, end, truncated=match is None)
    if escape_at is not None:
        escape = body[escape_at : escape_at + 6].decode()
        return f"{escape} is half of a UTF-16 surrogate pair without the other half, {_place(body, escape_at)}"
    if match is None:
        return f"{text} (after {end} bytes)"
    return f"{text[: match.start()].rstrip().removeprefix('JSON is malformed: ')}, {_place(body, at)}"


def _place(body: bytes, at: int) -> str:
    return f"line {body.count(_NEWLINE, 0, at) + 1} column {at - body.rfind(_NEWLINE, 0, at)}"


def _unpaired_surrogate(body: bytes, at: int, end: int, *, truncated: bool) -> int | None:
    """Where the escape stands that made the decoder fail at `at`, if it is half of a surrogate pair.

    The decoder reads a pair's twelve bytes at once: it stops behind the first six or all of them, and near the end of
    the text it takes the missing half for a text that ends too early.
    """
    if truncated:
        match = _HALF_NEAR_END.search(body, max(0, end - 11), end)
        if match is None:
            return None
        before = body[: match.start()]
        is_escaped = (len(before) - len(before.rstrip(b"\\"))) % 2 == 1
        return None if is_escaped else match.start()
    for escape_at, pattern in ((at - 12, _HIGH_AND_OTHER), (at - 6, _HALF)):
        if escape_at >= 0 and pattern.match(body, escape_at, end):
            return escape_at
    return None
