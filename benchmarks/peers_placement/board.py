"""Board: free capacity that a peer changes pod by pod while it decides, and the way back to a state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pointsman.core.placement.domains import Bools
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.state import ClusterState


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a gang's floors."""

    gang: Gang
    group: RoleGroup
    replica: int
    pod: int


def floor_pods(gang: Gang) -> Iterator[Pod]:
    """All pods of the floors, role by role."""
    for group in gang.groups:
        for replica in range(group.min_replicas):
            for pod in range(group.pods_per_replica):
                yield Pod(gang, group, replica, pod)


class Board:
    """Of one look. Gangs may hold any part of their pods."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._devices = state.device_free_milli.copy()
        self._cpu = state.cpu_free_milli.copy()
        self._memory = state.memory_free_bytes.copy()
        self.held: dict[str, dict[tuple[str, int, int], PodPlace]] = {
            name: {(pod.role, pod.replica, pod.pod): pod for pod in placement.pods}
            for name, placement in state.placements.items()
        }
        self.gangs = {name: placement.gang for name, placement in state.placements.items()}

    def copy(self) -> Board:
        """For a try that may be forgotten."""
        found = Board.__new__(Board)
        found._state = self._state
        found._devices, found._cpu, found._memory = self._devices.copy(), self._cpu.copy(), self._memory.copy()
        found.held = {name: dict(pods) for name, pods in self.held.items()}
        found.gangs = dict(self.gangs)
        return found

    def lose_pods_of_lost_nodes(self) -> None:
        """What was on nodes that are not ready is gone, pod by pod."""
        down = {node.name for row, node in enumerate(self._state.nodes) if not self._state.ready[row]}
        for name in self._state.hit(down) if down else ():
            for pod in list(self.held[name].values()):
                if pod.node in down:
                    self.give(name, pod)

    def has(self, pod: Pod) -> bool:
        """Whether the pod has a place."""
        return (pod.group.name, pod.replica, pod.pod) in self.held.get(pod.gang.name, {})

    def fits(self, group: RoleGroup) -> Bools:
        """By node: whether one pod of the role fits now."""
        asks, state = group.requests, self._state
        found = state.up & state.suitability.of(group)
        found = found & (self._cpu >= asks.cpu_milli) & (self._memory >= asks.memory_bytes)
        if asks.whole_gpus:
            found = found & (self.whole_free() >= asks.whole_gpus)
        elif asks.gpu_milli:
            found = found & (self._devices.max(axis=1, initial=0) >= asks.gpu_milli)
        return found

    def room(self, group: RoleGroup) -> np.ndarray:
        """By node: how many pods of the role fit now, as whole GPUs, CPU and memory say."""
        asks = group.requests
        found = np.where(self.fits(group), 1_000_000, 0)
        if asks.whole_gpus:
            found = np.minimum(found, self.whole_free() // asks.whole_gpus)
        elif asks.gpu_milli:
            found = np.minimum(found, (np.maximum(self._devices, 0) // asks.gpu_milli).sum(axis=1))
        if asks.cpu_milli:
            found = np.minimum(found, self._cpu // asks.cpu_milli)
        if asks.memory_bytes:
            found = np.minimum(found, self._memory // asks.memory_bytes)
        return found

    def whole_free(self) -> np.ndarray:
        """By node: GPUs that are free whole."""
        return (self._devices == WHOLE_GPU_MILLI).sum(axis=1)

    def take(self, pod: Pod, row: int) -> None:
        """The pod on this node, where it fits."""
        asks, free = pod.group.requests, self._devices[row]
        if asks.whole_gpus:
            devices = np.flatnonzero(free == WHOLE_GPU_MILLI)[: asks.whole_gpus]
            free[devices] = 0
        elif asks.gpu_milli:
            fitting = np.flatnonzero(free >= asks.gpu_milli)
            devices = fitting[[int(np.argmin(free[fitting]))]]
            free[devices] -= asks.gpu_milli
        else:
            devices = np.empty(0, dtype=np.int64)
        self._cpu[row] -= asks.cpu_milli
        self._memory[row] -= asks.memory_bytes
        place = PodPlace(pod.group.name, pod.replica, pod.pod, self._state.nodes[row].name, tuple(devices.tolist()))
        self.held.setdefault(pod.gang.name, {})[pod.group.name, pod.replica, pod.pod] = place
        self.gangs[pod.gang.name] = pod.gang

    def give(self, gang: str, place: PodPlace) -> None:
        """A pod gives up its place."""
        asks, row = self.gangs[gang].group(place.role).requests, self._state.row_of[place.node]
        for device in place.devices:
            self._devices[row, device] += asks.device_share_milli or WHOLE_GPU_MILLI
        self._cpu[row] += asks.cpu_milli
        self._memory[row] += asks.memory_bytes
        del self.held[gang][place.role, place.replica, place.pod]
        if not self.held[gang]:
            del self.held[gang]

    def state(self) -> ClusterState:
        """With what is held now; checked by the state, so nothing is ever booked twice."""
        state = self._state
        for name, placement in self._state.placements.items():
            now = set(self.held.get(name, {}).values())
            kept = tuple(pod for pod in placement.pods if pod in now)
            if len(kept) < len(placement.pods):
                state = state.exchange(replace(placement, pods=kept))
        for name, pods in self.held.items():
            placement = Placement(self.gangs[name], tuple(pods.values()))
            there = state.placements.get(name)
            if there is None:
                state = state.hold(placement)
            elif len(there.pods) < len(placement.pods):
                state = state.exchange(placement)
        return state
