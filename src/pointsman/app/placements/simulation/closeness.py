"""Closeness: how far the pods of a gang are from each other, and its prefill from its decode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pointsman.core.placement.gang import DECODE, PREFILL
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.state import ClusterState


def domains_used(state: ClusterState, placement: Placement, level: str) -> int:
    """Domains of a level that pods with GPUs touch; all pods, if none has GPUs."""
    asks = {group.name: group.requests.gpu_milli for group in placement.gang.groups}
    pods = [pod for pod in placement.pods if asks[pod.role]] or list(placement.pods)
    return len(set(state.domains.of_node[state.topology.index(level), _rows(state, pods)].tolist()))


def handover_shares(state: ClusterState, placement: Placement) -> tuple[float, ...] | None:
    """Of all pairs of a prefill pod and a decode pod, the share whose nearest common domain is of each level: node
    first, as `topology.names`, then the share that has none in common. None: the gang does not have both."""
    stages = {group.name: group.stage for group in placement.gang.groups}
    prefill = _rows(state, (pod for pod in placement.pods if stages[pod.role] == PREFILL))
    decode = _rows(state, (pod for pod in placement.pods if stages[pod.role] == DECODE))
    if not len(prefill) or not len(decode):
        return None
    pairs = len(prefill) * len(decode)
    together = []
    for of_node in state.domains.of_node:
        mine, counts = np.unique(of_node[prefill], return_counts=True)
        theirs = dict(zip(*(each.tolist() for each in np.unique(of_node[decode], return_counts=True)), strict=True))
        common = sum(
            count * theirs.get(domain, 0) for domain, count in zip(mine.tolist(), counts.tolist(), strict=True)
        )
        together.append(common / pairs)
    return tuple(np.diff(together, prepend=0.0).tolist())


def _rows(state: ClusterState, pods: Iterable[PodPlace]) -> np.ndarray:
    return np.array([state.row_of[pod.node] for pod in pods], dtype=np.int64)
