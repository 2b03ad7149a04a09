"""Numbers, lists and counts as sentences about decisions say them."""

from __future__ import annotations

from collections.abc import Sequence


def ms(value: float) -> str:
    """Three digits are enough to be told: `0.25 ms`, `8.3 ms`, `283 ms`, `12.4 s`."""
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:,.1f} s"
    if size >= 100 or value == 0:
        return f"{value:,.0f} ms"
    return f"{value:.3g} ms" if size >= 0.001 else "under 0.001 ms"


def amount(value: float, unit: str) -> str:
    """A value in the unit of a policy's scores."""
    if unit == "ms":
        return ms(value)
    number = f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"
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
