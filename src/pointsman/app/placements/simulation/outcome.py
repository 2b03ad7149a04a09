"""Outcome: what came of a simulated cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at one moment; shares are of the GPUs of nodes that are up."""

    at_s: float
    whole_share: float
    """GPUs of gangs that are whole."""
    partial_share: float
    """GPUs of gangs that hold less than their floors, and so compute nothing."""
    waiting: int
    """Gangs that are not whole."""


@dataclass(frozen=True)
class Outcome:
    """Totals of one run."""

    gangs: int
    """That came."""
    placed: int
    """Of them, that were whole at some time."""
    finished: int
    stuck: int
    """That held a part of their floors when the run ended."""
    never: int
    """That came and were never whole, parts held or not."""
    partial_gang_s: float
    partial_gpu_s: float
    whole_gpu_s: float
    up_gpu_s: float
    free_gpu_s: float
    broken_free_gpu_s: float
    """Free GPUs of nodes that are partly in use."""
    preempted_gpu_s: float
    """Starting up of pods that others took the place of."""
    waits_s: tuple[float, ...]
    """Of each gang, from its submission until it was whole; of those that never were, until the run ended."""
    racks: tuple[int, ...]
    """Of each gang that was placed, domains of the close level that its GPUs were in, as it was whole first."""
    handovers: tuple[tuple[float, ...], ...]
    """Of each gang with prefill and decode, as it was whole first: see `handover_shares`."""
    actions: Mapping[str, int]
    samples: tuple[Sample, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """By the keys of MEASURES; nan where there is nothing to measure."""
        waits = np.array(self.waits_s) if self.waits_s else np.array([math.nan])
        handovers = np.array(self.handovers) if self.handovers else None
        levels = None if handovers is None else handovers.mean(axis=0)
        return {
            "placed_share": _ratio(self.placed, self.gangs),
            "partial_gang_s": self.partial_gang_s,
            "idle_partial_share": _ratio(self.partial_gpu_s, self.up_gpu_s),
            "stuck_share": _ratio(self.stuck, self.gangs),
            "whole_share": _ratio(self.whole_gpu_s, self.up_gpu_s),
            "broken_share": _ratio(self.broken_free_gpu_s, self.free_gpu_s),
            "racks": float(np.mean(self.racks)) if self.racks else math.nan,
            "distance": math.nan if levels is None else float(levels @ np.arange(len(levels))),
            "wait_p50_s": float(np.percentile(waits, 50)),
            "wait_p99_s": float(np.percentile(waits, 99)),
            "preempted_gpu_h": self.preempted_gpu_s / 3_600,
            "evictions": float(self.actions.get("evict", 0)),
            "moves": float(self.actions.get("move", 0)),
            "repairs": float(self.actions.get("repair", 0)),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


@dataclass(frozen=True, slots=True)
class Measure:
    """How a number is shown."""

    title: str
    meaning: str
    unit: str
    """`share`, `seconds`, `count` or `hours`."""
    less_is_better: bool | None = True
    """None: neither."""


MEASURES = {
    "placed_share": Measure(
        "placed whole", "Of the gangs that came, those that were whole at some time", "share", False
    ),
    "partial_gang_s": Measure(
        "partial gang s", "Seconds in which gangs held a part of their floors, added up", "seconds"
    ),
    "idle_partial_share": Measure("idle in parts", "GPUs that were held by gangs below their floors", "share"),
    "stuck_share": Measure("stuck", "Gangs that held a part of their floors when the run ended", "share"),
    "whole_share": Measure("GPUs in use", "GPUs of whole gangs, of all that were up", "share", False),
    "broken_share": Measure("free in pieces", "Of the free GPUs, those of nodes that are partly in use", "share"),
    "racks": Measure("racks a gang", "Domains that the GPUs of a gang are in, when it is placed", "count"),
    "distance": Measure(
        "P to D", "Level of the nearest common domain of prefill and decode pods: 0 is the node", "count"
    ),
    "wait_p50_s": Measure("P50 wait", "From submission until whole; never placed: until the end", "seconds"),
    "wait_p99_s": Measure("P99 wait", "The same, one gang in a hundred waits longer", "seconds"),
    "preempted_gpu_h": Measure("lost GPU h", "Start-ups of pods that gave way to others", "hours"),
    "evictions": Measure("evictions", "Gangs that had to wait again", "count"),
    "moves": Measure("moves", "Gangs that went elsewhere to make room", "count", None),
    "repairs": Measure("repairs", "Gangs that lost nodes and went on", "count", None),
}
