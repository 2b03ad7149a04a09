"""Meter: what the cluster does, summed up over time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from pointsman.app.placements.simulation.closeness import domains_used, handover_shares
from pointsman.app.placements.simulation.outcome import Outcome, Sample
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.queues.actions import Action, Cause
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.state import ClusterState

_GIVEN_UP_FOR_OTHERS = (Cause.PREEMPTION, Cause.RECLAIM, Cause.CONSOLIDATION)


class Meter:
    """Told of every change, in order of time."""

    def __init__(self, state: ClusterState, level: str | None, startup_s: float) -> None:
        self._level = level
        self._startup_s = startup_s
        self._now_s = 0.0
        self._gpus: dict[str, tuple[float, bool]] = {}
        """Of every gang that holds something: GPUs, and whether it is whole."""
        self._pods: dict[str, dict[PodPlace, float]] = {}
        """Since when each pod is there."""
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._rates: dict[str, float] = {}
        self._actions: Counter[str] = Counter()
        self._racks: list[int] = []
        self._handovers: list[tuple[float, ...]] = []
        self._samples: list[Sample] = []
        self._whole_first: dict[str, float] = {}
        self._preempted_gpu_s = 0.0
        self.changed(state, 0)

    def until(self, now_s: float) -> None:
        """Time passes with nothing changed."""
        for name, rate in self._rates.items():
            self._sums[name] += rate * (now_s - self._now_s)
        self._now_s = now_s

    def ended(self, gang: str) -> None:
        """A gang has run long enough, and is gone."""
        self._gpus.pop(gang, None)
        self._pods.pop(gang, None)

    def acted(self, action: Action, state: ClusterState) -> None:
        """A scheduler changed what a gang holds."""
        self._actions[action.kind.value] += 1
        name, after = action.gang, action.after
        pods = self._pods.setdefault(name, {})
        placement = after or action.before
        assert placement is not None
        gang = placement.gang
        for pod in action.removed:
            ran_s = self._now_s - pods.pop(pod, self._now_s)
            if action.why.cause in _GIVEN_UP_FOR_OTHERS:
                gpus = gang.group(pod.role).requests.gpus
                self._preempted_gpu_s += gpus * min(ran_s, self._startup_s)
        for pod in action.added:
            pods[pod] = self._now_s
        if after is None:
            self.ended(name)
            return
        self._gpus[name] = _gpus_of(after), after.is_whole
        if after.is_whole and name not in self._whole_first:
            self._whole_first[name] = self._now_s
            if self._level is not None:
                self._racks.append(domains_used(state, after, self._level))
            shares = handover_shares(state, after)
            if shares is not None:
                self._handovers.append(shares)

    def changed(self, state: ClusterState, waiting: int) -> None:
        """Everything of this moment is done."""
        up = state.ready
        capacity = np.array([node.gpus for node in state.nodes], dtype=np.float64)
        free = state.gpu_free_milli / WHOLE_GPU_MILLI
        whole = sum(gpus for gpus, is_whole in self._gpus.values() if is_whole)
        partial = sum(gpus for gpus, is_whole in self._gpus.values() if not is_whole)
        self._rates = {
            "up": float(capacity[up].sum()),
            "free": float(free[up].sum()),
            "broken": float(free[up & (free < capacity)].sum()),
            "whole": whole,
            "partial": partial,
            "partial_gangs": float(sum(not is_whole for _, is_whole in self._gpus.values())),
        }
        all_up = max(self._rates["up"], 1.0)
        self._samples.append(Sample(self._now_s, whole / all_up, partial / all_up, waiting))

    def outcome(self, submitted_s: Mapping[str, float], finished: int) -> Outcome:
        """Of all gangs that came."""
        first, sums = self._whole_first, self._sums
        return Outcome(
            gangs=len(submitted_s),
            placed=len(first),
            finished=finished,
            stuck=sum(not is_whole for _, is_whole in self._gpus.values()),
            never=len(submitted_s) - len(first),
            partial_gang_s=sums["partial_gangs"],
            partial_gpu_s=sums["partial"],
            whole_gpu_s=sums["whole"],
            up_gpu_s=sums["up"],
            free_gpu_s=sums["free"],
            broken_free_gpu_s=sums["broken"],
            preempted_gpu_s=self._preempted_gpu_s,
            waits_s=tuple(first.get(name, self._now_s) - at_s for name, at_s in submitted_s.items()),
            racks=tuple(self._racks),
            handovers=tuple(self._handovers),
            actions=dict(self._actions),
            samples=tuple(self._samples),
        )


def _gpus_of(placement: Placement) -> float:
    counts = Counter(pod.role for pod in placement.pods)
    return sum(placement.gang.group(role).requests.gpus * count for role, count in counts.items())
