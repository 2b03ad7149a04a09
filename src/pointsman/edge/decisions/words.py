"""Numbers, lists and counts as sentences about decisions say them."""

from __future__ import annotations

from collections.abc import Sequence

_MANY = 1e12
"""From here on digits tell nothing: what has no number at all is written down as 1e300."""


def plain(value: float, digits: int = 3, whole_from: float = 100) -> str:
    """`0.25`, `8.3`, `1,283`: whole numbers and large ones as they are, others with so many digits."""
    size = abs(value)
    if size < _MANY and (size >= whole_from or value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def ms(value: float) -> str:
    """Three digits are enough to be told: `0.25 ms`, `8.3 ms`, `283 ms`, `12.4 s`."""
    size = abs(value)
    if 10_000 <= size < _MANY:
        return f"{value / 1000:,.1f} s"
    return f"{plain(value)} ms" if size >= 0.001 or value == 0 else "under 0.001 ms"


def amount(value: float, unit: str) -> str:
    """A value in the unit of a policy's scores."""
    if unit == "ms":
        return ms(value)
    number = plain(value, 4, 1000)
    return number if unit in ("", "none") else f"{number} {singular(unit) if value == 1 else unit}"


def count(number: int, what: str) -> str:
    """`1 worker`, `3 workers`; `what` is a plural."""
    return f"{number:,} {singular(what) if number == 1 else what}"


def singular(plural: str) -> str:
    """Of the plain plurals that are used here."""
    return plural[:-1] if plural.endswith("s") and plural != "ms" else plural


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent(share: float) -> str:
    """`38 %`."""
    return f"{100 * share:.0f} %"
