"""Attempt: one try to place so many replicas of each role, with the gang's constraints or looser ones."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pointsman.core.placement.gang import Gang, Scope
from pointsman.core.placement.optimize import NO_LIMIT, Found, Timer, fits, least_spread
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.problem import Problem, build_problem, preference_cost
from pointsman.core.placement.state import ClusterState


@dataclass(frozen=True, slots=True)
class Loosened:
    """Constraints to use instead of the gang's own."""

    scopes: tuple[Scope, ...]
    whole_replicas: Mapping[str, str | None]
    """Role → level of `replica_required`."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was found. `problem` None: nothing was wanted."""

    problem: Problem | None
    found: Found | None


def attempt(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    timer: Timer,
    *,
    kept: Placement | None = None,
    most_cost: int = NO_LIMIT,
    loosened: Loosened | None = None,
) -> Attempt | None:
    """The cheapest way to add these replicas; None: it is proved that there is none. Raises BudgetSpentError.

    Keeping replicas whole where that is only preferred is kept for all of a role or given up at the price of a
    preference, whichever is cheaper.
    """
    hoping = [
        group.name
        for group in gang.groups
        if group.replica_preferred is not None and group.pods_per_replica > 1 and wanted.get(group.name, 0)
    ]
    price = preference_cost(state)
    best: Attempt | None = None
    for given_up in range(len(hoping) + 1):
        extra = given_up * price
        for dropped in itertools.combinations(hoping, given_up):
            top = most_cost if best is None or best.found is None else min(most_cost, best.found.cost - 1)
            if top < NO_LIMIT:
                top -= extra
            problem = _problem(state, gang, wanted, kept, dropped, loosened)
            if problem is None:
                return Attempt(None, None)
            found = least_spread(state, problem, timer, top)
            if found is not None:
                best = Attempt(problem, replace(found, cost=found.cost + extra, bound=found.bound + extra))
        if best is not None and best.found is not None and best.found.cost <= extra + price:
            break
    return best


def possible(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    timer: Timer,
    *,
    kept: Placement | None = None,
    loosened: Loosened | None = None,
) -> bool:
    """Whether these replicas can be added so that all that is required holds. Raises BudgetSpentError."""
    problem = _problem(state, gang, wanted, kept, [group.name for group in gang.groups], loosened)
    return problem is None or fits(state, problem, timer)


def _problem(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    dropped: Collection[str],
    loosened: Loosened | None,
) -> Problem | None:
    if loosened is None:
        return build_problem(state, gang, wanted, kept, dropped=dropped)
    return build_problem(
        state,
        gang,
        wanted,
        kept,
        dropped=dropped,
        scopes=loosened.scopes,
        whole_replicas=loosened.whole_replicas,
    )
