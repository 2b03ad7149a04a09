"""Workloads: the trace of each seed and rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pointsman.app.experiments.perturbation import perturbed
from pointsman.core.workload.scale import faster
from pointsman.core.workload.trace import Trace


class Workload(Protocol):
    """Gives the traffic of one seed. Equal arguments give equal traces; has to go into other processes (pickle)."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def trace(self, seed: int) -> Trace:
        """The traffic as it comes under that seed."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace; `perturb`: each seed shifts its conversations in time, else every seed has it as it is."""

    recorded: Trace
    perturb: bool = True

    @property
    def name(self) -> str:
        """The trace's."""
        return self.recorded.name

    def trace(self, seed: int) -> Trace:
        """Shifted by that seed."""
        return perturbed(self.recorded, seed) if self.perturb else self.recorded


@dataclass(frozen=True, slots=True)
class Made:
    """Traffic that a function generates from a seed: each seed has its own."""

    name: str
    make: Callable[[int], Trace]

    def trace(self, seed: int) -> Trace:
        """Generated from that seed."""
        return self.make(seed)


def requests_s(trace: Trace) -> float:
    """Mean arrivals a second; 0 when all come at once."""
    return (len(trace) - 1) / trace.duration_ms * 1_000 if trace.duration_ms else 0.0


class TraceMemo:
    """Keeps the last trace made: the runs of one seed come after each other."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._last: tuple[int, float, Trace] | None = None

    def trace(self, seed: int, rate: float) -> Trace:
        """The traffic of that seed at that rate."""
        if self._last is None or self._last[:2] != (seed, rate):
            trace = self._workload.trace(seed)
            self._last = (seed, rate, trace if rate == 1 else faster(trace, rate))
        return self._last[2]
