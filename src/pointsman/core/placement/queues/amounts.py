"""Amounts: GPU, CPU and memory as a triple of whole numbers, the form in which queues count."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.resources import Resources, shown, shown_gib

Amounts = tuple[int, int, int]
"""GPU in thousandths, CPU in thousandths, memory in bytes."""

NONE: Amounts = (0, 0, 0)
UNLIMITED = 2**62
KINDS = ("GPU", "CPU", "memory")
UNITS: Amounts = (1000, 1, 1)
"""What is given out at least of each: whole GPUs."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much of each resource a queue may have or is owed; None: without bound. Raises PlacementError below 0."""

    gpu_milli: int | None = None
    cpu_milli: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_milli", "cpu_milli", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise PlacementError(f"{name} is {value}; 0 or more is expected, or nothing for no bound")

    @property
    def amounts(self) -> Amounts:
        """The same with a very large number for what has no bound."""
        gpu, cpu, memory = (
            UNLIMITED if value is None else value for value in (self.gpu_milli, self.cpu_milli, self.memory_bytes)
        )
        return gpu, cpu, memory


def amounts_of(resources: Resources) -> Amounts:
    """As a triple."""
    return resources.gpu_milli, resources.cpu_milli, resources.memory_bytes


def plus(one: Amounts, other: Amounts) -> Amounts:
    """Sum of both."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def minus(one: Amounts, other: Amounts) -> Amounts:
    """What is left."""
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def least(one: Amounts, other: Amounts) -> Amounts:
    """The smaller one of each kind."""
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])


def told(kind: int, value: int) -> str:
    """For people: `12 GPUs`, `4.5 CPUs`, `64 GiB of memory`."""
    if kind == 2:
        return f"{shown_gib(value)} of memory"
    return f"{shown(value / 1000)} {KINDS[kind]}{'' if value == 1000 else 's'}"
