"""Members of a body that were kept as raw JSON: read when a prompt is rendered, not on every request."""

from __future__ import annotations

import msgspec
from msgspec import Raw, UnsetType

from pointsman.edge.prompts.errors import NotTokenizable, Reason


def is_given(raw: Raw | UnsetType) -> bool:
    """There, and not null."""
    return isinstance(raw, Raw) and bytes(raw) != b"null"


def value(raw: Raw | UnsetType) -> object:
    """The value; None where it is absent. Raises NotTokenizable for what can't be read."""
    if not isinstance(raw, Raw):
        return None
    try:
        decoded: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotTokenizable(Reason.UNUSUAL_FIELD, f"a field can't be read: {error}") from None
    return decoded


def flag(raw: Raw | UnsetType, name: str, *, default: bool) -> bool:
    """A JSON boolean. Engines read other values as one too, each in its own way: NotTokenizable."""
    if not isinstance(raw, Raw):
        return default
    text = bytes(raw)
    if text not in (b"true", b"false"):
        raise NotTokenizable(Reason.UNUSUAL_FIELD, f"{name}: expected true or false")
    return text == b"true"


def array(raw: Raw | UnsetType, name: str) -> list[object] | None:
    """An array, or None."""
    found = value(raw)
    if found is not None and not isinstance(found, list):
        raise NotTokenizable(Reason.UNUSUAL_FIELD, f"{name}: expected an array")
    return found


def mapping(raw: Raw | UnsetType, name: str) -> dict[str, object]:
    """An object, empty where it is absent."""
    found = value(raw)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NotTokenizable(Reason.UNUSUAL_FIELD, f"{name}: expected an object")
    return found


def refuse(raw: Raw | UnsetType, name: str, reason: Reason = Reason.UNUSUAL_FIELD) -> None:
    """For a field with which the token ids can't be known. Raises NotTokenizable if it is given."""
    if is_given(raw):
        raise NotTokenizable(reason, f"the request has {name}")
