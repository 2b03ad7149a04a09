"""How busy the machine was with things that do not belong to a measurement."""

from __future__ import annotations

import os
import time

from harness import process_stats


class NoiseMeter:
    """Measures from its making on. This process, ended children and the trees of `roots` are the measurement itself."""

    def __init__(self, roots: tuple[int, ...] = ()) -> None:
        self._roots = roots
        self._started = time.monotonic()
        self._busy_s = process_stats.machine_busy_s()
        self._own_s = self._own_cpu_s()

    def foreign_cores(self) -> float:
        """Cores that everything else kept busy on average."""
        foreign = process_stats.machine_busy_s() - self._busy_s - (self._own_cpu_s() - self._own_s)
        return max(0.0, foreign) / max(time.monotonic() - self._started, 1e-9)

    def _own_cpu_s(self) -> float:
        ended = os.times()
        return ended.children_user + ended.children_system + self._living_cpu_s()

    def _living_cpu_s(self) -> float:
        return process_stats.cpu_s({os.getpid(), *(pid for root in self._roots for pid in process_stats.tree(root))})
