"""SLO: the limits within which an answer counts as good."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.app.simulate.outcome import Outcome
from pointsman.core.model.errors import ConfigError

_UNITS_MS: Mapping[str, float] = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "min": 60_000.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*")
_NAMES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in ms for one request; None: no limit on that."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def met(self, outcome: Outcome) -> NDArray[np.bool_]:
        """Which requests were answered whole and within every limit. One of a single token has no TPOT to miss."""
        good = outcome.whole
        for limit_ms, values in (
            (self.ttft_ms, outcome.ttft_ms),
            (self.tpot_ms, np.nan_to_num(outcome.tpot_ms, nan=0.0)),
            (self.e2e_ms, outcome.e2e_ms),
        ):
            if limit_ms is not None:
                good &= values <= limit_ms
        return good

    def __str__(self) -> str:
        """As `parse_slo` reads it."""
        limits = zip(_NAMES, (self.ttft_ms, self.tpot_ms, self.e2e_ms), strict=True)
        return ",".join(f"{name}={_duration(limit)}" for name, limit in limits if limit is not None)


def parse_slo(text: str) -> Slo:
    """`ttft=2s,tpot=50ms,e2e=30s`, any of the three. Raises ConfigError."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in _NAMES or not equals:
            raise ConfigError(
                f"--slo {text}: {part.strip()!r} is no limit; write ttft=2s,tpot=50ms,e2e=30s, or some of them"
            )
        if name in limits:
            raise ConfigError(f"--slo {text}: {name} is given twice")
        limits[name] = duration_ms(value, f"--slo {text}: {name}")
    return Slo(limits.get("ttft"), limits.get("tpot"), limits.get("e2e"))


def duration_ms(text: str, where: str) -> float:
    """`2s`, `50ms` or `1.5m` in ms. Raises ConfigError that begins with `where`."""
    match = _DURATION.fullmatch(text.lower())
    unit_ms = _UNITS_MS.get(match[2]) if match else None
    if match is None or unit_ms is None or float(match[1]) <= 0:
        raise ConfigError(f"{where}: {text!r} is no duration; write a number and a unit, such as 50ms or 2s")
    return float(match[1]) * unit_ms


def _duration(limit_ms: float) -> str:
    return f"{limit_ms / 1_000:.15g}s" if limit_ms >= 1_000 else f"{limit_ms:.15g}ms"
