"""Relaxation: a bound on spread from GPUs alone, as if all roles were one whose pods may be cut as nodes allow.

Each node gives what the roles together could use of it at most, which is exact for a node and optimistic for more. It
is one-dimensional, so it costs little where the exact tables would be large.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.node_tables import NodeTables
from pointsman.core.placement.problem import LevelRules, Problem
from pointsman.core.placement.search import Search
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.steps import Bundle, Group, Layout
from pointsman.core.placement.tables import Limits, Table


def least_possible(state: ClusterState, problem: Problem, nodes: NodeTables, limits: Limits) -> int | None:
    """No placement costs less; None: none exists. Raises BudgetSpentError."""
    weights = np.array([problem.groups[role].requests.gpu_milli for role in problem.order], dtype=np.int64)
    if not weights.any():
        weights[:] = 1
    unit = math.gcd(*weights.tolist())
    counted = frozenset(role for role, weight in zip(problem.order, weights.tolist(), strict=True) if weight)
    total = sum(problem.pods[role] * int(weights[item]) for item, role in enumerate(problem.order)) // unit
    tables = tuple(_scalar(int((table.points.vectors @ weights).max(initial=0)) // unit) for table in nodes.tables)
    layout = Layout((frozenset({0}),), (total,))
    levels: list[LevelRules] = []
    offset = problem.offset
    current = layout
    for rules in problem.levels:
        kept, left = [], 0
        for preference in rules.preferences:
            if counted <= preference.roles:
                kept.append(replace(preference, roles=frozenset({0})))
            else:
                left += preference.cost * (not preference.present.any())
        offset += left
        steps: tuple[Group | Bundle, ...] = ()
        after = current
        if current.caps != (1,) and _bundles_all(rules, counted):
            steps = (Bundle((0,)),)
            after = steps[0].after(current)
        levels.append(LevelRules(current, steps, after, rules.cost, rules.present, tuple(kept)))
        current = after
    group = RoleGroup("all", total, total)
    relaxed = Problem(
        gang=Gang(problem.gang.name, (group,)),
        groups=(group,),
        counts=(total,),
        fits=(np.ones(len(state.nodes), dtype=np.bool_),),
        order=(0,),
        levels=tuple(levels),
        last=current,
        offset=offset,
        recipe=problem.recipe,
    )
    return Search(state, relaxed, NodeTables(nodes.class_of, tables, nodes.most), limits).least_cost()


def _bundles_all(rules: LevelRules, counted: frozenset[int]) -> bool:
    """Whether everything that is counted has to be in one domain of the level."""
    return any(len(rules.after.roles) == 1 and counted <= roles for roles in rules.after.roles) and any(
        isinstance(step, Bundle) for step in rules.steps
    )


def _scalar(most: int) -> Table:
    return Table(np.zeros(1, dtype=np.int64), np.array([most], dtype=np.int32))
