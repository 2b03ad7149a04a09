"""Problem: what of a gang has to be placed, and what each level of the topology demands and costs on the way up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import Gang, RoleGroup, Scope
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.steps import Bundle, Group, Layout

PREFERENCE_FACTOR = 10
"""A domain more than a preference asks for costs so many times what the farthest level costs."""


@dataclass(frozen=True)
class Preference:
    """As few domains as possible of a level for the roles of `roles` (positions)."""

    roles: frozenset[int]
    cost: int
    present: Bools
    """By domain of the level: the gang's pods that are there already have paid for it."""


@dataclass(frozen=True)
class LevelRules:
    """What happens at one level, in this order: steps, then charges."""

    before: Layout
    steps: tuple[Group | Bundle, ...]
    after: Layout
    cost: int
    present: Bools
    """By domain: whether the gang is there already."""
    preferences: tuple[Preference, ...]


@dataclass(frozen=True)
class Recipe:
    """What a problem was built from, to build parts of it."""

    kept: Placement | None
    dropped: tuple[str, ...]
    scopes: tuple[Scope, ...]
    whole_replicas: Mapping[str, str | None] | None
    allowed: Bools | None


@dataclass(frozen=True)
class Problem:
    """Replicas to add to what is kept of a gang."""

    gang: Gang
    groups: tuple[RoleGroup, ...]
    """Roles of which something is to be placed; positions count in here."""
    counts: tuple[int, ...]
    """Replicas of each."""
    fits: tuple[Bools, ...]
    """By role and node: pins of what is kept included."""
    order: tuple[int, ...]
    """Roles as items of the node tables: the last one is the one whose items stay apart longest."""
    levels: tuple[LevelRules, ...]
    """Near to far, `node` first, the cluster left out."""
    last: Layout
    """Items at the cluster."""
    offset: int
    """What has to be added to charges: costs count domains beyond the first, and those in use already."""
    recipe: Recipe

    @property
    def pods(self) -> tuple[int, ...]:
        """Pods to place of each role."""
        return tuple(count * group.pods_per_replica for count, group in zip(self.counts, self.groups, strict=True))


def preference_cost(state: ClusterState) -> int:
    """What one domain more than a preference asks for costs."""
    return PREFERENCE_FACTOR * max(1, *state.topology.costs)


def build_problem(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None = None,
    *,
    dropped: Collection[str] = (),
    scopes: Collection[Scope] | None = None,
    whole_replicas: Mapping[str, str | None] | None = None,
    allowed: Bools | None = None,
) -> Problem | None:
    """So many more replicas of each role (0 or absent: none). None if nothing is wanted.

    `dropped` are roles whose `replica_preferred` is given up; `scopes` and `whole_replicas` (role → level of
    `replica_required`) replace the gang's own constraints, for trying what loosening them would do; other nodes than
    the `allowed` ones are not used.
    Raises PlacementError for levels that the topology lacks.
    """
    topology = state.topology
    scopes = tuple(gang.scopes()) if scopes is None else tuple(scopes)
    for scope in scopes:
        _level(state, gang, scope.origin, scope.level)
    groups = tuple(group for group in gang.groups if wanted.get(group.name, 0) > 0)
    if not groups:
        return None
    position = {group.name: at for at, group in enumerate(groups)}
    counts = tuple(wanted[group.name] for group in groups)
    rows_of = _rows_of(state, gang, kept)
    usable = state.up if allowed is None else state.up & allowed
    fits = [state.suitability.of(group) & usable for group in groups]
    bundles: list[tuple[int, frozenset[int]]] = []
    for scope in scopes:
        mine = frozenset(position[role] for role in scope.roles if role in position)
        if not scope.required or not mine:
            continue
        level = topology.index(scope.level)
        there = np.concatenate([rows_of[role] for role in sorted(scope.roles)])
        if len(there):  # what is kept has chosen the domain already
            pinned = state.domains.of_node[level]
            for role in mine:
                fits[role] = fits[role] & (pinned == pinned[there[0]])
        else:
            bundles.append((level, mine))
    sizes = _replica_levels(state, gang, groups, dropped, whole_replicas)
    for role, group in enumerate(groups):
        needed = _replica_required(state, gang, group, whole_replicas)
        if needed is not None and group.pods_per_replica == 1:  # one pod is together; it only has to be in a domain
            fits[role] = fits[role] & state.domains.is_real[needed][state.domains.of_node[needed]]
    order = _order(groups, counts, bundles, len(topology.names))
    layout = Layout(
        tuple(frozenset({role}) for role in order),
        tuple(counts[role] * groups[role].pods_per_replica for role in order),
    )
    levels: list[LevelRules] = []
    offset = 0
    anywhere = np.concatenate(list(rows_of.values()))
    for level, cost in enumerate(topology.costs):
        domain_of = state.domains.of_node[level]
        domains = len(state.domains.is_real[level])
        before = layout
        layout, steps = _steps(layout, level, sizes, groups, bundles)
        preferences = []
        for scope in scopes:
            if scope.required or topology.index(scope.level) != level:
                continue
            present = _present(domain_of, np.concatenate([rows_of[role] for role in sorted(scope.roles)]), domains)
            mine = frozenset(position[role] for role in scope.roles if role in position)
            price = preference_cost(state)
            offset += price * (int(present.sum()) - 1) if mine or present.any() else 0
            if mine:
                preferences.append(Preference(mine, price, present))
        present = _present(domain_of, anywhere, domains)
        offset += cost * (int(present.sum()) - 1)
        levels.append(LevelRules(before, steps, layout, cost, present, tuple(preferences)))
    recipe = Recipe(kept, tuple(dropped), scopes, whole_replicas, allowed)
    return Problem(gang, groups, counts, tuple(fits), order, tuple(levels), layout, offset, recipe)


def _level(state: ClusterState, gang: Gang, origin: str, level: str) -> int:
    try:
        return state.topology.index(level)
    except PlacementError as error:
        raise PlacementError(f"gang {gang.name}, {origin}: {error}") from None


def _rows_of(state: ClusterState, gang: Gang, kept: Placement | None) -> dict[str, np.ndarray]:
    found: dict[str, list[int]] = {group.name: [] for group in gang.groups}
    for pod in kept.pods if kept else ():
        found[pod.role].append(state.row(pod.node))
    return {role: np.array(rows, dtype=np.int64) for role, rows in found.items()}


def _present(domain_of: np.ndarray, rows: np.ndarray, domains: int) -> Bools:
    found = np.zeros(domains, dtype=np.bool_)
    found[domain_of[rows]] = True
    return found


def _replica_required(
    state: ClusterState, gang: Gang, group: RoleGroup, whole_replicas: Mapping[str, str | None] | None
) -> int | None:
    required = group.replica_required if whole_replicas is None else whole_replicas.get(group.name)
    return None if required is None else _level(state, gang, f"{group.name}.replica_required", required)


def _replica_levels(
    state: ClusterState,
    gang: Gang,
    groups: tuple[RoleGroup, ...],
    dropped: Collection[str],
    whole_replicas: Mapping[str, str | None] | None,
) -> dict[int, list[int]]:
    """Role → levels that its replicas may not leave, near to far: at the nearest one its pods become whole replicas."""
    found: dict[int, list[int]] = {}
    for role, group in enumerate(groups):
        required = _replica_required(state, gang, group, whole_replicas)
        levels = [] if required is None else [required]
        if group.replica_preferred is not None:
            level = _level(state, gang, f"{group.name}.replica_preferred", group.replica_preferred)
            levels += [] if group.name in dropped else [level]
        if levels and group.pods_per_replica > 1:
            found[role] = sorted(set(levels))
    return found


def _order(
    groups: tuple[RoleGroup, ...], counts: tuple[int, ...], bundles: list[tuple[int, frozenset[int]]], never: int
) -> tuple[int, ...]:
    """The role that stays apart longest last, of those the one with the most pods: it is free in the tables."""

    def weight(role: int) -> tuple[int, int]:
        level = min((level for level, roles in bundles if role in roles), default=never)
        return level, counts[role] * groups[role].pods_per_replica

    return tuple(sorted(range(len(groups)), key=weight))


def _steps(
    layout: Layout,
    level: int,
    sizes: dict[int, list[int]],
    groups: tuple[RoleGroup, ...],
    bundles: list[tuple[int, frozenset[int]]],
) -> tuple[Layout, tuple[Group | Bundle, ...]]:
    steps: list[Group | Bundle] = []
    for item, roles in enumerate(layout.roles):
        bound = [role for role in roles if level in sizes.get(role, ())]
        if bound:
            # Where a role is a bundle already its replicas are whole; they only may not be outside of all domains.
            is_first = len(roles) == 1 and level == sizes[bound[0]][0] and not _bundled(bound[0], level, bundles)
            step = Group(item, groups[bound[0]].pods_per_replica if is_first else 1)
            steps.append(step)
            layout = step.after(layout)
    for at, roles in bundles:
        if at == level:
            bundle = Bundle(layout.holding(roles))
            steps.append(bundle)
            layout = bundle.after(layout)
    return layout, tuple(steps)


def _bundled(role: int, level: int, bundles: list[tuple[int, frozenset[int]]]) -> bool:
    return any(at < level and role in roles for at, roles in bundles)
