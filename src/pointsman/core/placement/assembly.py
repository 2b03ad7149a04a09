"""Assembly: from counts of pods on nodes to a placement: which replica, which pod, which devices; and what it costs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pointsman.core.placement.devices import assign
from pointsman.core.placement.domains import Ints
from pointsman.core.placement.plan import LevelSpread, PodPlace
from pointsman.core.placement.problem import Problem
from pointsman.core.placement.state import ClusterState


def pods_of(state: ClusterState, problem: Problem, counts: Ints, kept: Iterable[PodPlace] = ()) -> tuple[PodPlace, ...]:
    """What is kept and the new pods, replicas numbered on from the first free numbers.

    `counts`: (roles, nodes). Pods of a replica are neighbours in the tree, so a replica is split only where it has to.
    """
    kept = tuple(kept)
    taken: dict[str, set[int]] = {}
    for pod in kept:
        taken.setdefault(pod.role, set()).add(pod.replica)
    asks = [group.requests for group in problem.groups]
    path = np.lexsort(state.domains.of_node)
    devices = {
        node: assign(state.device_free_milli[node].tolist(), asks, counts[:, node].tolist())
        for node in np.flatnonzero(counts.any(axis=0)).tolist()
    }
    found: list[PodPlace] = []
    for role, group in enumerate(problem.groups):
        numbers = _free_numbers(taken.get(group.name, set()), problem.counts[role])
        places = [(node, device) for node in path[counts[role, path] > 0].tolist() for device in devices[node][role]]
        size = group.pods_per_replica
        for at, (node, device) in enumerate(places):
            found.append(PodPlace(group.name, numbers[at // size], at % size, state.nodes[node].name, device))
    return (*kept, *found)


def cost_of(state: ClusterState, problem: Problem, counts: Ints) -> int:
    """Spread of what is kept and these pods in the topology's costs, unmet preferences included."""
    total = problem.offset
    for level, rules in enumerate(problem.levels):
        domain_of = state.domains.of_node[level]
        new = np.unique(domain_of[counts.any(axis=0)])
        total += rules.cost * int((~rules.present[new]).sum())
        for preference in rules.preferences:
            roles = sorted(preference.roles)
            new = np.unique(domain_of[counts[roles].any(axis=0)])
            total += preference.cost * int((~preference.present[new]).sum())
    return total


def spread_of(state: ClusterState, pods: Iterable[PodPlace]) -> tuple[LevelSpread, ...]:
    """Domains that pods touch, near to far."""
    rows = [state.row(name) for name in {pod.node for pod in pods}]
    return tuple(
        LevelSpread(name, len(np.unique(state.domains.of_node[level, rows])))
        for level, name in enumerate(state.topology.names)
    )


def _free_numbers(taken: set[int], wanted: int) -> list[int]:
    found: list[int] = []
    number = 0
    while len(found) < wanted:
        if number not in taken:
            found.append(number)
        number += 1
    return found
