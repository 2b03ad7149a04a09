"""Optimize: the least spread of a problem, by raising the cost that is allowed until the search finds a placement.

Each round proves that nothing below its limit fits, so when time runs out the gap is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pointsman.core.placement.assembly import cost_of
from pointsman.core.placement.domains import Ints
from pointsman.core.placement.nearby import single_domains
from pointsman.core.placement.node_tables import NodeTables, node_tables
from pointsman.core.placement.plan import Gap, Optimal, Statement
from pointsman.core.placement.problem import Problem
from pointsman.core.placement.relaxation import Bound, least_possible
from pointsman.core.placement.search import Search
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.stepwise import one_by_one
from pointsman.core.placement.tables import BudgetSpentError, Limits

NO_LIMIT = 2**62
_LARGE = 1000
"""Cells of a table."""


@dataclass(frozen=True)
class Timer:
    """Until when to search, on which clock."""

    deadline_s: float
    clock_s: Callable[[], float]

    def limits(self, most_cost: int = NO_LIMIT) -> Limits:
        """For one search."""
        return Limits(most_cost, self.deadline_s, self.clock_s)

    def part(self, share: float) -> Timer:
        """One that ends after a share of what is left."""
        now = self.clock_s()
        return Timer(now + max(0.0, self.deadline_s - now) * share, self.clock_s)


@dataclass(frozen=True)
class Found:
    """Counts of pods (roles, nodes), what they cost, and what is known of the least possible cost."""

    counts: Ints
    cost: int
    bound: int
    """None costs less."""

    @property
    def statement(self) -> Statement:
        """For the placement."""
        return Optimal() if self.cost <= self.bound else Gap(self.cost - self.bound)


def tables_for(state: ClusterState, problem: Problem) -> NodeTables:
    """Node tables of a problem, its roles in the order of items."""
    return node_tables(
        state,
        [problem.groups[role].requests for role in problem.order],
        [problem.fits[role] for role in problem.order],
        [problem.pods[role] for role in problem.order],
    )


def fits(state: ClusterState, problem: Problem, timer: Timer) -> bool:
    """Whether all that is required can be had, whatever the spread: exact. Raises BudgetSpentError."""
    tables = tables_for(state, problem)
    if least_possible(state, problem, tables) is None:
        return False
    if is_large(problem) and _stepwise(state, problem, timer) is not None:
        return True
    return Search(state, problem, tables, timer.limits(), charged=False).least_cost() is not None


def least_spread(state: ClusterState, problem: Problem, timer: Timer, most_cost: int = NO_LIMIT) -> Found | None:
    """A placement with the least spread; None: it is proved that none costs `most_cost` or less.

    When time runs out after a placement was found, that one comes with the gap. Raises BudgetSpentError if none was.
    """
    tables = tables_for(state, problem)
    relaxed = least_possible(state, problem, tables)
    if relaxed is None or relaxed.cost > most_cost:
        return None
    bound = limit = least = relaxed.cost
    first: Found | None = None
    try:
        if not is_large(problem):
            found = _in_one_domain(state, problem, tables, timer, relaxed)
            if found is not None:
                return found
            found, higher = _round(state, problem, tables, timer, limit)
            if found is not None:
                return found if found.cost <= most_cost else None
            if higher is None or higher > most_cost:
                return None
            bound = higher
        counts = _first(state, problem, tables, timer)
        if counts is None:
            return None
        cost = cost_of(state, problem, counts)
        first = Found(counts, cost, min(bound, cost))
        # From here on only what is cheaper is looked for.
        top = min(most_cost, cost - 1)
        limit = bound
        if bound <= top and is_large(problem):
            found = _in_one_domain(state, problem, tables, timer, relaxed)
            if found is not None:
                return found
        while bound <= top:
            found, higher = _round(state, problem, tables, timer, limit)
            if found is not None:
                return found
            if higher is None or higher > top:
                break
            bound = max(bound, higher)
            limit = min(top, max(bound, least + 2 * (limit - least)))
    except BudgetSpentError:
        if first is None or first.cost > most_cost:
            raise
        return replace(first, bound=min(bound, first.cost))
    return replace(first, bound=first.cost) if first.cost <= most_cost else None


def _in_one_domain(
    state: ClusterState, problem: Problem, tables: NodeTables, timer: Timer, relaxed: Bound
) -> Found | None:
    """A placement at the bound's cost in a single domain that is large enough."""
    for some in single_domains(state, problem, tables, relaxed):
        found, _ = _round(state, problem, some, timer, relaxed.cost)
        if found is not None:
            return found
    return None


def _round(
    state: ClusterState, problem: Problem, tables: NodeTables, timer: Timer, most_cost: int
) -> tuple[Found | None, int | None]:
    """The cheapest placement that costs no more than `most_cost`, or the least cost that one might have above it."""
    limits = timer.limits(most_cost - problem.offset)
    search = Search(state, problem, tables, limits)
    cost = search.least_cost()
    if cost is not None:
        return Found(search.counts(), cost, cost), None
    return None, None if limits.next_cost is None else limits.next_cost + problem.offset


def _first(state: ClusterState, problem: Problem, tables: NodeTables, timer: Timer) -> Ints | None:
    """Any placement, the better the sooner the search ends; None: it is proved that there is none."""
    if len(problem.groups) > 1:
        counts = _stepwise(state, problem, timer)
        if counts is not None:
            return counts
    search = Search(state, problem, tables, timer.limits(), charged=False)
    return None if search.least_cost() is None else search.counts()


def _stepwise(state: ClusterState, problem: Problem, timer: Timer) -> Ints | None:
    def solve(held: ClusterState, part: Problem) -> Ints | None:
        found = least_spread(held, part, timer)
        return None if found is None else found.counts

    return one_by_one(state, problem, solve)


def is_large(problem: Problem) -> bool:
    """Whether its exact tables may be so large that quick ways are tried before them."""
    return math.prod(cap + 1 for cap in problem.levels[0].before.caps[:-1]) > _LARGE
