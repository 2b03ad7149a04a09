"""Points in time as logs write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from pointsman.edge.traces.problems import RowError

_MS = 1000.0
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d|UTC)?", re.IGNORECASE)
_COMMON_LOG = re.compile(r"\[?(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [+-]\d{4})\]?")
# Epoch times of today are about 1.7e9 s; a thousand times more each is ms, µs, ns.
_UNITS = ((1e11, _MS), (1e14, 1.0), (1e17, 1e-3), (float("inf"), 1e-6))


def epoch_ms(value: object, field: str) -> float:
    """ms since 1970 of a number (s, ms, µs or ns, told apart by its size) or a text (ISO 8601, which is UTC where it
    names no zone, or the common log format). Fractions finer than µs are kept. Raises RowError."""
    if isinstance(value, str):
        text = value.strip()
        try:
            return _of_number(float(text), field)
        except ValueError:
            return _of_text(text, field)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _of_number(float(value), field)
    raise RowError(f"{field}: expected a time, not {value!r}")


def _of_number(number: float, field: str) -> float:
    if not math.isfinite(number):
        raise RowError(f"{field}: {number} is no time")
    return number * next(factor for limit, factor in _UNITS if abs(number) < limit)


def _of_text(text: str, field: str) -> float:
    try:
        if match := _ISO.fullmatch(text):
            day, clock, fraction, zone = match.groups()
            zone = "" if zone is None or zone.upper() in ("Z", "UTC") else zone
            moment = datetime.fromisoformat(f"{day}T{clock}{zone}")
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            return moment.timestamp() * _MS + (float(f"0.{fraction}") * _MS if fraction else 0.0)
        if match := _COMMON_LOG.fullmatch(text):
            return datetime.strptime(match.group(1), "%d/%b/%Y:%H:%M:%S %z").timestamp() * _MS
    except (ValueError, OverflowError) as error:
        raise RowError(f"{field}: {text!r} is no time: {error}") from None
    raise RowError(f"{field}: {text!r} is no time; expected for example 2026-01-31T12:00:00.5Z or seconds since 1970")
