"""GpuName: one GPU of a machine, as its exporter of metrics calls it."""

from __future__ import annotations

from typing import ClassVar


class GpuName(str):
    """Its number, or its UUID."""

    __slots__ = ()

    expected: ClassVar[str] = "the number of a GPU, such as 0, or its UUID, such as GPU-4f1b…"

    @classmethod
    def parse(cls, value: object) -> GpuName:
        """Read 0, `GPU-…` or `MIG-…`. Raises ValueError for anything else."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return cls(value)
        text = value.strip() if isinstance(value, str) else ""
        if text.isdecimal() and text.isascii():
            return cls(int(text))
        if text.isprintable() and text.startswith(("GPU-", "MIG-")):
            return cls(text)
        raise ValueError(cls.expected)
