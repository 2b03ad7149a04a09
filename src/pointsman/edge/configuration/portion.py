"""Portion: all, nothing or a share of something, as people write it in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pointsman.edge.configuration.share import Share


@dataclass(frozen=True, slots=True, order=True)
class Portion:
    """A part of a whole, 0 to 1."""

    part: float

    expected: ClassVar[str] = "true (all), false (none), or a share such as 5%"

    @classmethod
    def parse(cls, value: object) -> Portion:
        """Read `true`, `false`, `5%`. Raises ValueError for anything else."""
        if isinstance(value, bool):
            return cls(float(value))
        try:
            return cls(Share.parse(value).part)
        except ValueError:
            raise ValueError(cls.expected) from None

    def __str__(self) -> str:
        return {0.0: "false", 1.0: "true"}.get(self.part) or str(Share(self.part))
