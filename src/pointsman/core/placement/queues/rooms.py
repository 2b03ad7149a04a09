"""Rooms: whether one replica more of a role might fit, as far as counts of pods by node say.

Hundreds of gangs that could be larger are asked about in every cycle, and most of the time there is room for none of
them, so answers are shared by all roles that ask for the same.
"""

from __future__ import annotations

import numpy as np

from pointsman.core.placement.domains import Bools, Ints
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState

_Key = tuple[Resources, int, int]


class Rooms:
    """Of one state; another one is made when anything of it changed."""

    def __init__(self, state: ClusterState, closed: Bools | None) -> None:
        self._state = state
        self._open = state.up if closed is None else state.up & ~closed
        self._whole_free = state.whole_free
        self._of_node: dict[_Key, Ints] = {}
        self._in_domain: dict[tuple[_Key, int], Ints] = {}

    def may_take(self, gang: Gang, have: Placement, group: RoleGroup, *, movable: bool = False) -> bool:
        """Whether a replica more of a role might fit; if not it certainly does not.

        What is required to be together has chosen its domain already, unless the gang is still `movable`.
        """
        if have.replicas[group.name] >= group.max_replicas:
            return False
        key = self._key(group)
        size = group.pods_per_replica
        room = self._room(key, group)
        pins = [] if movable else self._pins(gang, have, group)
        if size == 1 or group.replica_required is None:
            if not pins:
                return bool(self._by_domain(key, len(self._state.topology.names))[0] >= size)
            if len(pins) == 1:
                level, domain = pins[0]
                return bool(self._by_domain(key, level)[domain] >= size)
        for level, domain in pins:
            room = np.where(self._state.domains.of_node[level] == domain, room, 0)
        if size == 1 or group.replica_required is None:
            return bool(room.sum() >= size)
        of_node = self._state.domains.of_node[self._state.topology.index(group.replica_required)]
        return bool(np.bincount(of_node, room).max(initial=0) >= size)

    def _key(self, group: RoleGroup) -> _Key:
        # The mask of nodes that suit a role is one object for all roles that ask for the same of a node.
        return group.requests, group.pods_per_replica, id(self._state.suitability.of(group))

    def _pins(self, gang: Gang, have: Placement, group: RoleGroup) -> list[tuple[int, int]]:
        """Level and domain of each constraint over the role that pods have settled already."""
        state = self._state
        found = set()
        for scope in gang.scopes():
            if not scope.required or group.name not in scope.roles:
                continue
            there = next((pod.node for pod in have.pods if pod.role in scope.roles), None)
            if there is not None:
                level = state.topology.index(scope.level)
                found.add((level, int(state.domains.of_node[level, state.row_of[there]])))
        return sorted(found)

    def _by_domain(self, key: _Key, level: int) -> Ints:
        found = self._in_domain.get((key, level))
        if found is None:
            found = np.bincount(self._state.domains.of_node[level], self._of_node[key]).astype(np.int64)
            self._in_domain[key, level] = found
        return found

    def _room(self, key: _Key, group: RoleGroup) -> Ints:
        """Pods by node, no more than a replica has."""
        found = self._of_node.get(key)
        if found is not None:
            return found
        state, asks = self._state, group.requests
        room: Ints = np.where(self._open & state.suitability.of(group), group.pods_per_replica, 0).astype(np.int64)
        if asks.whole_gpus:
            np.minimum(room, self._whole_free // asks.whole_gpus, out=room)
        elif asks.gpu_milli:
            np.minimum(room, (np.maximum(state.device_free_milli, 0) // asks.gpu_milli).sum(axis=1), out=room)
        if asks.cpu_milli:
            np.minimum(room, state.cpu_free_milli // asks.cpu_milli, out=room)
        if asks.memory_bytes:
            np.minimum(room, state.memory_free_bytes // asks.memory_bytes, out=room)
        self._of_node[key] = room
        return room
