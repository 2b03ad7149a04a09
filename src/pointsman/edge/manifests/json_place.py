"""Where in a JSON text a value stands. Only asked once something is wrong there, so reading stays fast."""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
Step = str | int
"""A key of an object, or a position in a list."""


def line_of(text: str, path: tuple[Step, ...]) -> int:
    """The line, counted from 1, of the value at a path of valid JSON; of the deepest one above it that is there."""
    at = _skip(text, 0)
    for step in path:
        found = _into_object(text, at, step) if isinstance(step, str) else _into_list(text, at, step)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _into_object(text: str, at: int, key: str) -> int | None:
    if text[at] != "{":
        return None
    at = _skip(text, at + 1)
    while text[at] == '"':
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if name == key:
            return at
        at = _after(text, at)
    return None


def _into_list(text: str, at: int, position: int) -> int | None:
    if text[at] != "[":
        return None
    at = _skip(text, at + 1)
    for _ in range(position):
        if text[at] == "]":
            return None
        at = _after(text, at)
    return None if text[at] == "]" else at


def _after(text: str, at: int) -> int:
    """Where the next member begins, or the closing bracket stands."""
    _, end = _DECODER.raw_decode(text, at)
    end = _skip(text, end)
    return _skip(text, end + 1) if text[end] == "," else end


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()
