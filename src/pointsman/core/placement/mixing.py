"""Mixing: prefill and decode side by side in every domain, where a plan that costs the same allows it.

The search decides how many pods of equal size go where; which of them prefill and which decode is free, as long as
every constraint is about both roles. Each domain gets them in the deployment's proportion, from the farthest level to
the nearest, so that a prompt computed anywhere finds a decode worker close by.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from pointsman.core.placement.gang import DECODE, PREFILL, Gang, RoleGroup
from pointsman.core.placement.plan import PodPlace
from pointsman.core.placement.state import ClusterState


def mixed(
    state: ClusterState, gang: Gang, pods: Sequence[PodPlace], kept: Collection[PodPlace] = ()
) -> tuple[PodPlace, ...]:
    """The pods with places exchanged between prefill and decode; `kept` ones stay where they are.

    Nothing else changes: the same devices are used, and what holds of the plan's cost and constraints holds still.
    """
    roles = _exchangeable(state, gang)
    if roles is None:
        return tuple(pods)
    prefill, decode = roles
    stays = frozenset(kept)
    mine = [pod for pod in pods if pod.role in (prefill.name, decode.name) and pod not in stays]
    wanted = sum(pod.role == prefill.name for pod in mine)
    if not 0 < wanted < len(mine):
        return tuple(pods)
    rows = np.array([state.row_of[pod.node] for pod in mine], dtype=np.int64)
    suits = [state.suitability.of(group)[rows].all() for group in roles]
    if not all(suits):
        return tuple(pods)
    chosen = _chosen(state.domains.of_node[:, rows], wanted)
    places = {prefill.name: chosen, decode.name: [at for at in range(len(mine)) if at not in set(chosen)]}
    found = {}
    for role, slots in places.items():
        owners = [pod for pod in mine if pod.role == role]
        for owner, at in zip(owners, slots, strict=True):
            found[owner] = replace(owner, node=mine[at].node, devices=mine[at].devices)
    return tuple(found.get(pod, pod) for pod in pods)


def _exchangeable(state: ClusterState, gang: Gang) -> tuple[RoleGroup, RoleGroup] | None:
    """The prefill and the decode role, if it is all the same to every constraint which is which."""
    prefill = [group for group in gang.groups if group.stage == PREFILL]
    decode = [group for group in gang.groups if group.stage == DECODE]
    if len(prefill) != 1 or len(decode) != 1:
        return None
    one, other = prefill[0], decode[0]
    if one.requests != other.requests or one.pods_per_replica != 1 or other.pods_per_replica != 1:
        return None
    if any((one.name in scope.roles) != (other.name in scope.roles) for scope in gang.scopes()):
        return None
    return one, other


def _chosen(domain_of: np.ndarray, wanted: int) -> list[int]:
    """So many of the slots, in every domain as large a share of them as of all. `domain_of`: (levels, slots)."""
    slots = domain_of.shape[1]

    def split(mine: list[int], count: int, level: int) -> list[int]:
        if level < 0 or count in (0, len(mine)):
            return mine[:count]
        parts: dict[int, list[int]] = {}
        for at in mine:
            parts.setdefault(int(domain_of[level, at]), []).append(at)
        sizes = [len(part) for part in parts.values()]
        shares = [size * count // len(mine) for size in sizes]
        rests = [size * count % len(mine) for size in sizes]
        for at in sorted(range(len(sizes)), key=lambda at: -rests[at])[: count - sum(shares)]:
            shares[at] += 1
        return [at for part, share in zip(parts.values(), shares, strict=True) for at in split(part, share, level - 1)]

    return sorted(split(list(range(slots)), wanted, len(domain_of) - 1))
