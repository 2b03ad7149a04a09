"""Duration: a length of time with its unit, as people write it in a configuration."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time above zero."""

    s: float
    """Seconds."""

    expected: ClassVar[str] = "a duration above 0 with its unit (ms, s, m, h, d), such as 5s or 250ms"

    @property
    def ms(self) -> float:
        """Milliseconds."""
        return self.s * 1000.0

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Read `5s`, `10m`, `250ms`, `1.5h`. Raises ValueError for anything else: a bare number has no unit."""
        match = _FORM.fullmatch(value.strip().lower()) if isinstance(value, str) else None
        if match is None or match[2] not in _SECONDS_PER_UNIT:
            raise ValueError(cls.expected)
        seconds = float(match[1]) * _SECONDS_PER_UNIT[match[2]]
        if not 0 < seconds < math.inf:
            raise ValueError(cls.expected)
        return cls(seconds)

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            count = self.s / _SECONDS_PER_UNIT[unit]
            if count >= 1 and count == int(count):
                return f"{int(count)}{unit}"
        return f"{self.ms:.6f}".rstrip("0").rstrip(".") + "ms"
