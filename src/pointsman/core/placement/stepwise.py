"""Stepwise: a quick placement for gangs of many roles: one role after the other, largest pods first, each with the
least spread beside those before it. It can miss what fits, so the exact search still has the last word where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from pointsman.core.placement.assembly import pods_of
from pointsman.core.placement.domains import Bools, Ints
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.problem import Problem, build_problem
from pointsman.core.placement.state import ClusterState

MOST_DOMAINS_TRIED = 16
Solve = Callable[[ClusterState, Problem], Ints | None]


def one_by_one(state: ClusterState, problem: Problem, solve: Solve) -> Ints | None:
    """Counts of pods (roles, nodes) that keep all that is required, or None: nothing was found this way.

    `solve` finds the counts of a problem of one role.
    """
    roles = sorted(range(len(problem.groups)), key=lambda role: _size(problem, role), reverse=True)
    for nodes in _neighbourhoods(state, problem):
        found = _filled(state, problem, roles, nodes, solve)
        if found is not None:
            return found
    return None


def _size(problem: Problem, role: int) -> tuple[int, int, int]:
    asks = problem.groups[role].requests
    return asks.gpu_milli, asks.cpu_milli, problem.pods[role]


def _neighbourhoods(state: ClusterState, problem: Problem) -> Iterator[Bools]:
    """Where to try: everywhere; then, where roles have to be together, domain by domain, the tightest first that has
    enough GPUs."""
    yield np.ones(len(state.nodes), dtype=np.bool_)
    together = [
        state.topology.index(scope.level) for scope in problem.recipe.scopes if scope.required and len(scope.roles) > 1
    ]
    if not together:
        return
    of_node = state.domains.of_node[max(together)]
    free = np.bincount(of_node, weights=np.where(state.up, state.gpu_free_milli, 0)).astype(np.int64)
    asked = sum(pods * group.requests.gpu_milli for pods, group in zip(problem.pods, problem.groups, strict=True))
    order = [domain for domain in np.argsort(free, kind="stable").tolist() if free[domain] >= asked]
    for domain in order[:MOST_DOMAINS_TRIED]:
        yield of_node == domain


def _filled(state: ClusterState, problem: Problem, roles: list[int], nodes: Bools, solve: Solve) -> Ints | None:
    recipe = problem.recipe
    counts = np.zeros((len(problem.groups), len(state.nodes)), dtype=np.int64)
    kept = recipe.kept or Placement(problem.gang, ())
    for role in roles:
        group = problem.groups[role]
        part = build_problem(
            state,
            problem.gang,
            {group.name: problem.counts[role]},
            kept,
            dropped=recipe.dropped,
            scopes=recipe.scopes,
            whole_replicas=recipe.whole_replicas,
            allowed=nodes if recipe.allowed is None else nodes & recipe.allowed,
        )
        assert part is not None
        found = solve(state, part)
        if found is None:
            return None
        counts[role] = found[0]
        kept = Placement(problem.gang, pods_of(state, part, found, kept.pods))
        state = state.exchange(kept) if problem.gang.name in state.placements else state.hold(kept)
    return counts
