"""Shortfall: how much of a gang the cluster, or the domain that comes nearest, can hold, and what is missing there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from pointsman.core.placement.attempt import Loosened
from pointsman.core.placement.constraints import Constraint, loosened
from pointsman.core.placement.domains import Ints
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer, is_large, tables_for
from pointsman.core.placement.plan import Missing, Placement, TightestDomain
from pointsman.core.placement.problem import Problem, build_problem
from pointsman.core.placement.search import Search
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.steps import Layout
from pointsman.core.placement.tables import Table


def missing_in_cluster(
    state: ClusterState, gang: Gang, wanted: Mapping[str, int], kept: Placement | None, timer: Timer
) -> tuple[Missing, ...]:
    """What does not fit even without constraints, in the fullest way to fit the rest; nothing for gangs of so many
    roles that this takes long. Raises BudgetSpentError."""
    problem = _bare(state, gang, wanted, kept, loosened(()))
    if problem is None or is_large(problem):
        return ()
    search = Search(state, problem, tables_for(state, problem), timer.limits(), charged=False)
    return _missing(problem, _best(search.root, problem, problem.last), problem.last)


def tightest_domain(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    constraint: Constraint,
    others: Collection[Constraint],
    timer: Timer,
) -> TightestDomain | None:
    """The domain that holds most of what a constraint wants in one, with the constraints that hold inside it; None if
    the level has no domain. For gangs of so many roles that this takes long it is the one with the most free GPUs, and
    what is missing is left open. Raises BudgetSpentError."""
    level = state.topology.index(constraint.level)
    inner = [
        each
        for each in others
        if each != constraint and each.roles <= constraint.roles and state.topology.index(each.level) <= level
    ]
    if constraint.within_replica:
        wanted = dict.fromkeys(constraint.roles, 1)
        inner, kept = [], None
    else:
        wanted = {role: count for role, count in wanted.items() if role in constraint.roles}
    problem = _bare(state, gang, wanted, kept, loosened(inner))
    if problem is None:
        return None
    real = np.flatnonzero(state.domains.is_real[level]).tolist()
    if not real:
        return None
    if is_large(problem):
        return TightestDomain(constraint.level, _most_free(state, problem, level), ())
    search = Search(state, problem, tables_for(state, problem), timer.limits(), charged=False)
    layout = problem.levels[level].after
    weights = _weights(problem, layout)
    best = max(real, key=lambda domain: int(_best(search.table_of(level, domain), problem, layout) @ weights))
    counts = _best(search.table_of(level, best), problem, layout)
    return TightestDomain(constraint.level, state.domains.title(level, best), _missing(problem, counts, layout))


def _most_free(state: ClusterState, problem: Problem, level: int) -> str:
    usable = np.logical_or.reduce(problem.fits)
    real = state.domains.is_real[level]
    free = np.bincount(
        state.domains.of_node[level], weights=np.where(usable, state.gpu_free_milli, 0), minlength=len(real)
    )
    return state.domains.title(level, int(np.argmax(np.where(real, free, -1))))


def _bare(
    state: ClusterState, gang: Gang, wanted: Mapping[str, int], kept: Placement | None, only: Loosened
) -> Problem | None:
    return build_problem(
        state,
        gang,
        wanted,
        kept,
        dropped=[group.name for group in gang.groups],
        scopes=only.scopes,
        whole_replicas=only.whole_replicas,
    )


def _weights(problem: Problem, layout: Layout) -> Ints:
    """What one of each item asks for, in GPU, and a little for being there at all."""
    found = []
    for roles, cap in zip(layout.roles, layout.caps, strict=True):
        milli = sum(problem.pods[role] * problem.groups[role].requests.gpu_milli for role in roles)
        found.append(1000 * milli // cap + sum(problem.pods[role] for role in roles) // cap)
    return np.array(found, dtype=np.int64)


def _best(table: Table, problem: Problem, layout: Layout) -> Ints:
    vectors = table.points.vectors
    if not len(vectors):
        return np.zeros(len(layout.roles), dtype=np.int64)
    found: Ints = vectors[int(np.argmax(vectors @ _weights(problem, layout)))]
    return found


def _missing(problem: Problem, counts: Ints, layout: Layout) -> tuple[Missing, ...]:
    found = []
    for roles, cap, count in zip(layout.roles, layout.caps, counts.tolist(), strict=True):
        for role in sorted(roles):
            group, wanted = problem.groups[role], problem.counts[role]
            pods = problem.pods[role] * count // cap
            if pods < problem.pods[role]:
                lacks = group.requests.times(problem.pods[role] - pods)
                found.append(Missing(group.name, pods // group.pods_per_replica, wanted, lacks))
    return tuple(sorted(found, key=lambda each: each.role))
