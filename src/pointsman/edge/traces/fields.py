"""Fields of nested JSON, by dotted paths, in whatever shape logs have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pointsman.edge.traces.problems import RowError

Json = Mapping[str, object]
_ABSENT = ("", "-")
"""What nginx and others write for a value that there isn't."""


def dig(row: Json, path: str) -> object:
    """What lies at `a.b.c`; None where there is nothing. A key that contains dots itself is found too."""
    if path in row:
        return row[path]
    value: object = row
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def first_of(row: Json, paths: Iterable[str]) -> tuple[str, object]:
    """The first path at which something lies, and what; `("", None)` where there is none."""
    for path in paths:
        value = dig(row, path)
        if value is not None and value not in _ABSENT:
            return path, value
    return "", None


def whole_number(value: object, field: str) -> int:
    """Tokens: a whole number, also as text. Raises RowError."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise RowError(f"{field}: expected a whole number, not {value!r}") from None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise RowError(f"{field}: expected a whole number, not {value!r}")


def number(value: object, field: str) -> float:
    """A number, also as text. Raises RowError."""
    try:
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            found = float(value)
            if math.isfinite(found):
                return found
    except ValueError:
        pass
    raise RowError(f"{field}: expected a number, not {value!r}")
