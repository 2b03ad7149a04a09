"""Relaxation: a bound on spread from counts alone: how many domains of each level are needed at least, the roomiest
first, if only GPUs had to fit and pods could be cut as nodes allow.

Each node gives what the roles together could use of it at most, which is exact for a node and optimistic for more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pointsman.core.placement.domains import Bools, Ints
from pointsman.core.placement.node_tables import NodeTables
from pointsman.core.placement.problem import Problem
from pointsman.core.placement.state import ClusterState


@dataclass(frozen=True)
class Bound:
    """No placement costs less than `cost`. Nodes have `room` for parts of a GPU of which `wanted` are asked for."""

    cost: int
    room: Ints
    wanted: int


def least_possible(state: ClusterState, problem: Problem, nodes: NodeTables) -> Bound | None:
    """The bound; None: no placement exists."""
    weights = np.array([problem.groups[role].requests.gpu_milli for role in problem.order], dtype=np.int64)
    if not weights.any():
        weights[:] = 1
    unit = math.gcd(*weights.tolist())
    counted = frozenset(role for role, weight in zip(problem.order, weights.tolist(), strict=True) if weight)
    wanted = sum(problem.pods[role] * int(weights[item]) for item, role in enumerate(problem.order)) // unit
    of_class = [int((table.points.vectors @ weights).max(initial=0)) // unit for table in nodes.tables]
    room = np.array(of_class, dtype=np.int64)[nodes.class_of]
    if room.sum() < wanted:
        return None
    total = problem.offset
    for level, rules in enumerate(problem.levels):
        if not rules.cost and not rules.preferences:
            continue
        of_node = state.domains.of_node[level]
        by_domain = np.bincount(of_node, weights=room, minlength=len(rules.present)).astype(np.int64)
        total += rules.cost * _new_domains(by_domain, rules.present, wanted)
        for preference in rules.preferences:
            if counted <= preference.roles:
                total += preference.cost * _new_domains(by_domain, preference.present, wanted)
            elif not preference.present.any():
                total += preference.cost
    return Bound(total, room, wanted)


def _new_domains(room: Ints, present: Bools, wanted: int) -> int:
    """Domains that are needed besides those in use already."""
    left = wanted - int(room[present].sum())
    if left <= 0:
        return 0 if present.any() else 1
    roomiest = np.sort(room[~present])[::-1]
    return int(np.searchsorted(np.cumsum(roomiest), left)) + 1
