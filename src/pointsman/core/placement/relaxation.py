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
from pointsman.core.placement.steps import Bundle


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
    if room.sum() < wanted or not _bundles_fit(state, problem, nodes, weights):
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


def _bundles_fit(state: ClusterState, problem: Problem, nodes: NodeTables, weights: Ints) -> bool:
    """Whether each bundle has a domain with enough GPUs, and enough room for each of its roles by itself."""
    item_of = {role: item for item, role in enumerate(problem.order)}
    for level, rules in enumerate(problem.levels):
        layout = rules.before
        for step in rules.steps:
            if isinstance(step, Bundle):
                items = sorted(item_of[role] for item in step.items for role in layout.roles[item])
                if not _holders(state, problem, nodes, weights, level, items).any():
                    return False
            layout = step.after(layout)
    return True


def _holders(
    state: ClusterState, problem: Problem, nodes: NodeTables, weights: Ints, level: int, items: list[int]
) -> Bools:
    """Domains of a level that may hold all of these items of the node tables."""
    of_node = state.domains.of_node[level]
    enough = state.domains.is_real[level].copy()
    mine = np.zeros_like(weights)
    mine[items] = weights[items]
    of_class = [int((table.points.vectors @ mine).max(initial=0)) for table in nodes.tables]
    room = np.array(of_class, dtype=np.int64)[nodes.class_of]
    asked = sum(problem.pods[problem.order[item]] * int(weights[item]) for item in items)
    enough &= np.bincount(of_node, weights=room, minlength=len(enough)) >= asked
    for item in items:
        most = np.bincount(of_node, weights=nodes.most[item], minlength=len(enough))
        enough &= most >= problem.pods[problem.order[item]]
    return enough


def _new_domains(room: Ints, present: Bools, wanted: int) -> int:
    """Domains that are needed besides those in use already."""
    left = wanted - int(room[present].sum())
    if left <= 0:
        return 0 if present.any() else 1
    roomiest = np.sort(room[~present])[::-1]
    return int(np.searchsorted(np.cumsum(roomiest), left)) + 1
