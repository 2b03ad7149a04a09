"""Optimize: the least spread of a problem, by raising the cost that is allowed until the search finds a placement.

Each round proves that nothing below its limit fits, so when time runs out the gap is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pointsman.core.placement.assembly import cost_of
from pointsman.core.placement.domains import Ints
from pointsman.core.placement.node_tables import NodeTables, node_tables
from pointsman.core.placement.plan import BudgetSpent, Gap, Optimal, Statement
from pointsman.core.placement.problem import Problem
from pointsman.core.placement.search import Search
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError, Limits

NO_LIMIT = 2**62


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
    bound_proved: bool

    @property
    def statement(self) -> Statement:
        """For the placement."""
        if not self.bound_proved:
            return BudgetSpent()
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
    search = Search(state, problem, tables_for(state, problem), timer.limits(), charged=False)
    return search.least_cost() is not None


def within(state: ClusterState, problem: Problem, cost: int, timer: Timer) -> Found | None:
    """A placement that costs no more than `cost`, the cheapest. Raises BudgetSpentError."""
    limits = timer.limits(cost - problem.offset)
    search = Search(state, problem, tables_for(state, problem), limits)
    found = search.least_cost()
    return None if found is None else Found(search.counts(), found, found, True)


def least_spread(state: ClusterState, problem: Problem, timer: Timer, most_cost: int = NO_LIMIT) -> Found | None:
    """A placement with the least spread; None: it is proved that none costs `most_cost` or less.

    When time runs out after a placement was found, that one comes with the gap. Raises BudgetSpentError if none was.
    """
    tables = tables_for(state, problem)
    least = sum(
        rules.cost * (not rules.present.any())
        + sum(preference.cost for preference in rules.preferences if not preference.present.any())
        for rules in problem.levels
    )
    top = most_cost - problem.offset if most_cost < NO_LIMIT else NO_LIMIT
    if top < least:
        return None
    first: Found | None = None
    bound, proved, limit = least, False, least
    while True:
        try:
            limits = timer.limits(limit)
            search = Search(state, problem, tables, limits)
            cost = search.least_cost()
            if cost is not None:
                return Found(search.counts(), cost, cost, True)
            if limits.next_cost is None or limits.next_cost > top:
                return None
            bound, proved = limits.next_cost, True
            if first is None:
                open_search = Search(state, problem, tables, timer.limits(), charged=False)
                if open_search.least_cost() is None:
                    return None
                counts = open_search.counts()
                first = Found(counts, cost_of(state, problem, counts), 0, False)
        except BudgetSpentError:
            if first is None or first.cost > most_cost:
                raise
            return Found(first.counts, first.cost, min(bound + problem.offset, first.cost), proved)
        if first.cost <= bound + problem.offset:
            return Found(first.counts, first.cost, first.cost, True)
        limit = min(top, max(bound, least + 2 * (limit - least)))
