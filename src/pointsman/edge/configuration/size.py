"""Size: a number of bytes with its unit, as people write it in a configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

_BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_FORM = re.compile(r"(\d+)\s*([a-z]*)")


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """A number of bytes above zero."""

    bytes: int

    expected: ClassVar[str] = "a size above 0, such as 64MiB, 500kB or a plain number of bytes"

    @classmethod
    def parse(cls, value: object) -> Size:
        """Read `64MiB`, `500kB`, `1024`. Raises ValueError for anything else."""
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        match = _FORM.fullmatch(text.strip().lower()) if isinstance(text, str) else None
        if match is None or match[2] not in _BYTES_PER_UNIT or int(match[1]) == 0:
            raise ValueError(cls.expected)
        return cls(int(match[1]) * _BYTES_PER_UNIT[match[2]])

    def __int__(self) -> int:
        return self.bytes

    def __str__(self) -> str:
        for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if self.bytes >= unit and self.bytes % unit == 0:
                return f"{self.bytes // unit}{name}"
        return str(self.bytes)
