"""Moment: a point in time, as people write it in a configuration."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A point in time."""

    epoch_s: float

    expected: ClassVar[str] = (
        "a date or time (UTC unless it says otherwise), such as 2027-01-31 or 2027-01-31T12:00:00Z"
    )

    @classmethod
    def parse(cls, value: object) -> Moment:
        """Read a date, which stands for its beginning, or a time. Raises ValueError for anything else."""
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value.strip())
            except ValueError:
                raise ValueError(cls.expected) from None
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            value = datetime.datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime.datetime):
            raise ValueError(cls.expected)
        return cls((value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp())

    def __str__(self) -> str:
        text = datetime.datetime.fromtimestamp(self.epoch_s, datetime.UTC).isoformat(timespec="seconds")
        return text.removesuffix("+00:00") + "Z"
