"""What is wrong with a request's JSON, said so that its author finds it."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from pointsman.edge.wire.errors import BadRequest

T = TypeVar("T")

_PATH = re.compile(r" - at `\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_NAMES = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}
_QUOTED = re.compile(r"`([^`]*)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes, parent: str = "") -> T:
    """Decode JSON; `parent` is the name of the field that the JSON is the value of. Raises BadRequest."""
    if not body.strip():
        raise BadRequest(400, "the body is empty; send a JSON object", code="invalid_json")
    try:
        if not body.isascii():
            body.decode("utf-8")
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error), parent) from None
    except msgspec.DecodeError as error:
        raise BadRequest(
            400, f"the body is not valid JSON: {_position(str(error), body)}", code="invalid_json"
        ) from None
    except UnicodeDecodeError as error:
        raise BadRequest(
            400, f"the body is not valid UTF-8: {error.reason} at byte {error.start}", code="invalid_json"
        ) from None
    except RecursionError:
        raise BadRequest(400, "the body is nested too deeply; send flatter JSON", code="invalid_json") from None


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


def _position(text: str, body: bytes) -> str:
    match = re.search(r"\(byte (\d+)\)", text)
    if match is None:
        return f"{text} (after {len(body)} bytes)"
    at = int(match.group(1))
    line = body.count(b"\n", 0, at) + 1
    column = at - body.rfind(b"\n", 0, at)
    return f"{text.removeprefix('JSON is malformed: ')}, line {line} column {column}"
