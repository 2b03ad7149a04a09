"""Explanation: why a gang is not placed, and the smallest changes that would help. Nothing in it is guessed: each
sentence is the outcome of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pointsman.core.placement.attempt import possible
from pointsman.core.placement.changes import fewer_replicas, gang_to_move, looser_levels
from pointsman.core.placement.constraints import Constraint, constraints_of, loosened
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Change, Missing, Placement, Reason, Unplaced
from pointsman.core.placement.resources import shown, shown_gib
from pointsman.core.placement.shortfall import missing_in_cluster, tightest_domain
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError

_NOT_SO_CLOSE = "It fits the cluster, but not as close together as its constraints want."


def reason_of(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    timer: Timer,
    *,
    proved: bool = True,
    measured: bool = True,
) -> Unplaced:
    """Why these replicas do not fit, without trying changes. `proved` False: it is only known that time ran out;
    `measured` False: what is missing where is left out, which takes longer than to see that something is."""
    unfit = _unfit(state, gang, wanted)
    if unfit:
        role = unfit[0][0]
        whys = ", ".join(f"{why} ({count})" for each, why, count in unfit if each == role)
        text = f"No node takes a pod of role {role}: {whys}." if whys else f"No node for a pod of role {role}."
        return Unplaced(gang, Reason.NODE_UNFIT, text, unfit=unfit, proved=True)
    try:
        fits_apart = possible(state, gang, wanted, timer, kept=kept, loosened=loosened(()))
    except BudgetSpentError:
        told = "It does not fit" if proved else "Time ran out before it was known whether it fits"
        text = f"{told}; give it more time to learn why."
        return Unplaced(gang, Reason.INSUFFICIENT_CAPACITY, text, proved=proved)
    if not fits_apart:
        return _capacity(state, gang, wanted, kept, timer, measured=measured)
    if not proved:
        text = "It fits without its constraints of closeness; time ran out before a place that keeps them was found."
        return Unplaced(gang, Reason.TOPOLOGY_UNSATISFIED, text, proved=False)
    if not measured:
        return Unplaced(gang, Reason.TOPOLOGY_UNSATISFIED, _NOT_SO_CLOSE)
    return _topology(state, gang, wanted, kept, timer)


def explain(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    timer: Timer,
    *,
    proved: bool = True,
) -> Unplaced:
    """The same, with the smallest changes that make it fit: first those by which nobody loses anything."""
    found = reason_of(state, gang, wanted, kept, timer, proved=proved)
    if found.reason is Reason.NODE_UNFIT or not found.proved:
        return found
    found = replace(found, unfit=_left_out(state, gang, wanted))
    changes: list[Change] = []
    try:
        moved = gang_to_move(state, gang, wanted, kept, timer.part(0.5))
        if moved is not None:
            changes.append(moved)
    except BudgetSpentError:
        pass
    try:
        if found.reason is Reason.TOPOLOGY_UNSATISFIED:
            changes += looser_levels(state, gang, wanted, kept, constraints_of(gang), timer)
        fewer = fewer_replicas(state, gang, wanted, kept, timer)
        if fewer is not None:
            changes.append(fewer)
    except BudgetSpentError:
        pass
    order = ("move_gang", "shrink_gang", "looser_level", "fewer_replicas", "evict_gang")
    return replace(found, changes=tuple(sorted(changes, key=lambda change: order.index(change.kind))))


def _capacity(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    timer: Timer,
    *,
    measured: bool = True,
) -> Unplaced:
    try:
        missing = missing_in_cluster(state, gang, wanted, kept, timer) if measured else ()
    except BudgetSpentError:
        missing = ()
    if missing:
        text = f"The cluster has not enough free: {_listed(missing)}."
    else:
        asked = sum(
            wanted[group.name] * group.pods_per_replica * group.requests.gpu_milli
            for group in gang.groups
            if group.name in wanted
        )
        free = int(state.gpu_free_milli[state.up].sum())
        text = f"It asks for {shown(asked / 1000)} GPUs; {shown(free / 1000)} are free, and it does not fit into them."
    return Unplaced(gang, Reason.INSUFFICIENT_CAPACITY, text, missing=missing)


def _topology(
    state: ClusterState, gang: Gang, wanted: Mapping[str, int], kept: Placement | None, timer: Timer
) -> Unplaced:
    constraints = constraints_of(gang)
    try:
        culprit, culprit_alone = _culprit(state, gang, wanted, kept, constraints, timer)
        tightest = tightest_domain(state, gang, wanted, kept, culprit, constraints, timer)
    except BudgetSpentError:
        return Unplaced(gang, Reason.TOPOLOGY_UNSATISFIED, _NOT_SO_CLOSE)
    what = "Each replica" if culprit.within_replica else "What has to be together"
    if tightest is None:
        text = f"No node is in a domain of level {culprit.level}, which {culprit.origin} wants."
    elif tightest.missing:
        text = (
            f"{what} does not fit into one {culprit.level} ({culprit.origin}); nearest is {tightest.domain}, "
            f"which lacks room for {_listed(tightest.missing)}."
        )
    elif culprit_alone:
        text = f"{what} does not fit into one {culprit.level} ({culprit.origin}); {tightest.domain} has the most free."
    else:
        text = (
            f"{culprit.origin} (one {culprit.level}) can be met by itself, for example in {tightest.domain}, "
            "but not together with the other constraints."
        )
    return Unplaced(
        gang,
        Reason.TOPOLOGY_UNSATISFIED,
        text,
        constraint=culprit.origin,
        tightest=tightest,
        missing=tightest.missing if tightest else (),
    )


def _culprit(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    constraints: tuple[Constraint, ...],
    timer: Timer,
) -> tuple[Constraint, bool]:
    """The constraint to name, and whether it can't be met even alone: such a one; otherwise one without which it fits;
    otherwise the first."""
    for constraint in constraints:
        if not possible(state, gang, wanted, timer, kept=kept, loosened=loosened([constraint])):
            return constraint, True
    for constraint in constraints:
        others = [each for each in constraints if each is not constraint]
        if possible(state, gang, wanted, timer, kept=kept, loosened=loosened(others)):
            return constraint, False
    return constraints[0], False


def _unfit(state: ClusterState, gang: Gang, wanted: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Roles that no node would take even if it were empty → why, how many nodes."""
    found: list[tuple[str, str, int]] = []
    for group in gang.groups:
        if not wanted.get(group.name):
            continue
        suits = state.suitability.of(group) & state.suitability.large_enough(group)
        if (suits & state.up).any():
            continue
        obstacles = state.suitability.obstacles(group)
        if suits.any():
            obstacles["not ready"] = int((suits & ~state.ready).sum())
            obstacles["cordoned"] = int((suits & state.ready).sum())
        found += [(group.name, why, count) for why, count in obstacles.most_common() if count]
        if not state.nodes:
            found.append((group.name, "the cluster has no nodes", 0))
    return tuple(found)


def _left_out(state: ClusterState, gang: Gang, wanted: Mapping[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Why nodes that are large enough for a role are not counted as free for it."""
    found: list[tuple[str, str, int]] = []
    for group in gang.groups:
        if not wanted.get(group.name):
            continue
        barred = state.suitability.barred(group)
        would_do = state.suitability.of(group) & state.suitability.large_enough(group)
        barred["not ready"] = int((would_do & ~state.ready).sum())
        barred["cordoned"] = int((would_do & state.ready & ~state.up).sum())
        found += [(group.name, why, count) for why, count in barred.most_common() if count]
    return tuple(found)


def _listed(missing: tuple[Missing, ...]) -> str:
    parts = []
    for each in missing:
        lacks = each.lacks
        amounts = [f"{shown(lacks.gpus)} GPU{'s' * (lacks.gpus > 1)}"] if lacks.gpu_milli else []
        if not amounts:
            amounts = [f"{shown(lacks.cpu_milli / 1000)} CPUs"] if lacks.cpu_milli else []
            amounts += [f"{shown_gib(lacks.memory_bytes)}"] if lacks.memory_bytes else []
        number = each.wanted_replicas - each.fits_replicas
        parts.append(f"{number} of {each.wanted_replicas} {each.role} ({' and '.join(amounts) or 'nothing'})")
    return ", ".join(parts)
