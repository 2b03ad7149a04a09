"""Members of a JSON object as bytes: some change, go or come, every other value stays as it was written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

_NOTHING: Mapping[str, bytes] = MappingProxyType({})
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """Names and values in their order; of a member that is given twice the last counts, as it does for readers of JSON.

    Values are views into `text`. Raises ValueError for broken JSON, and for what is no object.
    """
    try:
        return _object.decode(text)
    except msgspec.ValidationError:
        raise ValueError("the body is not a JSON object; it must start with '{'") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("the body is not usable JSON: it is nested too deeply; send flatter JSON") from None


def joined(parts: Mapping[str, msgspec.Raw | bytes]) -> bytes:
    """The object that has these members; the values are JSON already."""
    encode = msgspec.json.encode
    return b"{%b}" % b",".join(b"%b:%b" % (encode(name), bytes(value)) for name, value in parts.items())


def edited(text: bytes, put: Mapping[str, bytes] = _NOTHING, drop: Collection[str] = ()) -> bytes:
    """An object with the members of `put` set, where they stand or at its end, and without those of `drop`.

    A name that comes twice stays once, with its last value. Raises ValueError as `members` does.
    """
    parts: dict[str, msgspec.Raw | bytes] = dict(members(text))
    for name in drop:
        parts.pop(name, None)
    parts.update(put)
    return joined(parts)
