"""Share: a part of a whole, as people write it in a configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

_FORM = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*%")


@dataclass(frozen=True, slots=True, order=True)
class Share:
    """A part of a whole, 0 to 1."""

    part: float

    expected: ClassVar[str] = "a share from 0% to 100%, such as 5% or 0.5%"

    @classmethod
    def parse(cls, value: object) -> Share:
        """Read `5%`, `0.5 %`. Raises ValueError for anything else; without the sign 1 could be all or a hundredth."""
        match = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or float(match[1]) > 100:
            raise ValueError(cls.expected)
        return cls(float(match[1]) / 100)

    def __str__(self) -> str:
        return f"{100 * self.part:.10g}%"
