"""Quantities as Kubernetes writes them: 500m, 64Gi, 1e3; and amounts of CPU, memory and GPUs made of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

_FORM = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([eE])([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{name: Fraction(1000**power) for power, name in enumerate("kMGTPE", 1)},
    **{f"{name}i": Fraction(1024**power) for power, name in enumerate("KMGTPE", 1)},
}
_MOST = 2**60
"""Milli-CPUs, bytes, …: what fits an int64 with room for sums."""


def quantity(value: object) -> Fraction:
    """The exact amount. Raises ValueError for anything that is no amount of 0 or more."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("no quantity")
    match = _FORM.fullmatch(str(value).strip())
    if match is None or match[1] == "-":
        raise ValueError("no quantity")
    amount = Fraction(match[2].rstrip("."))
    if match[3]:
        return amount * Fraction(10) ** int(match[4])
    return amount * _SUFFIXES.get(match[5] or "", Fraction(1))


def rounded_up(amount: Fraction) -> int:
    """What pods ask for is never made less. Raises ValueError for more than any machine has."""
    whole = math.ceil(amount)
    if whole > _MOST:
        raise ValueError("an amount that a machine can have")
    return whole


@dataclass(frozen=True, slots=True, order=True)
class Cpu:
    """CPU time in thousandths of a core."""

    milli: int

    expected: ClassVar[str] = "CPUs, such as 8, 500m or 1.5"

    @classmethod
    def parse(cls, value: object) -> Cpu:
        """Read `8`, `500m`. Raises ValueError for anything else."""
        try:
            return cls(rounded_up(quantity(value) * 1000))
        except ValueError:
            raise ValueError(cls.expected) from None

    def __str__(self) -> str:
        return str(self.milli // 1000) if self.milli % 1000 == 0 else f"{self.milli}m"


@dataclass(frozen=True, slots=True, order=True)
class Memory:
    """Memory in bytes."""

    bytes: int

    expected: ClassVar[str] = "an amount of memory, such as 64Gi, 500M or a number of bytes"

    @classmethod
    def parse(cls, value: object) -> Memory:
        """Read `64Gi`, `64GiB`, `1e9`. Raises ValueError for anything else."""
        text = value.strip().removesuffix("B") if isinstance(value, str) else value
        try:
            return cls(rounded_up(quantity(text)))
        except ValueError:
            raise ValueError(cls.expected) from None

    def __str__(self) -> str:
        for power, name in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
            if self.bytes and self.bytes % 1024**power == 0:
                return f"{self.bytes // 1024**power}{name}"
        return str(self.bytes)


@dataclass(frozen=True, slots=True, order=True)
class Gpus:
    """GPUs of one pod in thousandths: whole ones, or a part of one."""

    milli: int

    expected: ClassVar[str] = "a whole number of GPUs, or a part of one from 0.001 to 0.999, such as 8 or 0.5"

    @classmethod
    def parse(cls, value: object) -> Gpus:
        """Read `8`, `0.5`, `500m`. Raises ValueError for anything else."""
        try:
            milli = quantity(value) * 1000
            if milli.denominator != 1 or (milli > 1000 and milli % 1000 != 0):
                raise ValueError
            return cls(rounded_up(milli))
        except ValueError:
            raise ValueError(cls.expected) from None

    def __str__(self) -> str:
        return str(self.milli // 1000) if self.milli % 1000 == 0 else f"{self.milli / 1000:g}"
