"""Where the top-level members of a JSON object stand in its bytes."""

from __future__ import annotations

import re

import msgspec

_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^ \t\r\n,:\[\]{}\"]++")
_MARK = re.compile(rb'["{}\[\]]')
_OPENING = (b"{", b"[")
_BACKSLASH = ord("\\")


def object_start(body: bytes) -> int:
    """Offset just behind the opening brace. Raises ValueError if the body is no object."""
    at = _skip_space(body, 0)
    if body[at : at + 1] != b"{":
        raise ValueError("the body is not a JSON object; it must start with '{'")
    return at + 1


def top_level_spans(body: bytes) -> dict[str, tuple[int, int]]:
    """(start, end) of the value of each top-level member; of a name that is given twice, the last one.

    Raises ValueError where the structure is broken. Scalars are not checked.
    """
    spans: dict[str, tuple[int, int]] = {}
    at = _skip_space(body, object_start(body))
    if body[at : at + 1] == b"}":
        return spans
    while True:
        name, at = _name(body, at)
        at = _expect(body, _skip_space(body, at), b":")
        start = _skip_space(body, at)
        end = _value_end(body, start)
        spans[name] = (start, end)
        at = _skip_space(body, end)
        if body[at : at + 1] == b"}":
            return spans
        at = _skip_space(body, _expect(body, at, b","))


def _skip_space(body: bytes, at: int) -> int:
    match = _SPACE.match(body, at)
    return match.end() if match is not None else at


def _expect(body: bytes, at: int, mark: bytes) -> int:
    if body[at : at + 1] != mark:
        raise ValueError(f"malformed JSON: expected {mark.decode()!r} at byte {at}")
    return at + 1


def _name(body: bytes, at: int) -> tuple[str, int]:
    if body[at : at + 1] != b'"':
        raise ValueError(f"malformed JSON: expected a member's name at byte {at}")
    end = _string_end(body, at)
    text = body[at:end]
    try:
        return (msgspec.json.decode(text, type=str) if b"\\" in text else text[1:-1].decode()), end
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"malformed JSON: the member's name at byte {at}: {error}") from None


def _value_end(body: bytes, at: int) -> int:
    first = body[at : at + 1]
    if first in _OPENING:
        return _nested_end(body, at)
    if first == b'"':
        return _string_end(body, at)
    match = _SCALAR.match(body, at)
    if match is None:
        raise ValueError(f"malformed JSON: expected a value at byte {at}")
    return match.end()


def _string_end(body: bytes, at: int) -> int:
    """Offset behind the closing quote of the string whose opening quote is at `at`."""
    end = body.find(b'"', at + 1)
    while end > 0:
        first = end
        while body[first - 1] == _BACKSLASH:
            first -= 1
        if (end - first) % 2 == 0:
            return end + 1
        end = body.find(b'"', end + 1)
    raise ValueError(f"malformed JSON: the string at byte {at} does not end")


def _nested_end(body: bytes, at: int) -> int:
    depth = 0
    match = _MARK.search(body, at)
    while match is not None:
        mark = match.group()
        end = match.end()
        if mark == b'"':
            end = _string_end(body, match.start())
        elif mark in _OPENING:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return end
        match = _MARK.search(body, end)
    raise ValueError(f"malformed JSON: the value at byte {at} does not end")
