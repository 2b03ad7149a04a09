"""ClusterState: what is free on each node after the pods of others and our own gangs. It never changes: holding and
releasing give a new one, so a plan that fails half-way is rolled back by forgetting it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.domains import Bools, Domains, Ints, domains_of
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.resources import WHOLE_GPU_MILLI
from pointsman.core.placement.suitability import Suitability
from pointsman.core.placement.topology import Topology

NO_DEVICE = -1


@dataclass(frozen=True)
class ClusterState:
    """Free capacity. Rows of arrays are nodes in the order of `nodes`."""

    nodes: tuple[Node, ...]
    topology: Topology
    domains: Domains
    row_of: Mapping[str, int]
    device_free_milli: NDArray[np.int16]
    """(nodes, most GPUs of a node): what of each device is free, -1 where there is none."""
    cpu_free_milli: Ints
    memory_free_bytes: Ints
    up: Bools
    """Whether new pods may go there: ready and not cordoned."""
    ready: Bools
    placements: Mapping[str, Placement]
    """Our gangs, by name."""
    suitability: Suitability
    overcommitted: tuple[str, ...] = ()
    """Nodes whose foreign pods ask for more than there is: nothing of that is free."""

    @classmethod
    def of(cls, cluster: Cluster, topology: Topology) -> Self:
        """Nothing of ours is placed yet."""
        nodes = cluster.nodes
        widest = max((node.gpus for node in nodes), default=0)
        devices = np.full((len(nodes), widest), NO_DEVICE, dtype=np.int16)
        for row, node in enumerate(nodes):
            devices[row, : node.gpus] = WHOLE_GPU_MILLI
        cpu = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        memory = np.array([node.memory_bytes for node in nodes], dtype=np.int64)
        row_of = {node.name: row for row, node in enumerate(nodes)}
        over: set[str] = set()
        # Pods that say which devices they have go first: the others are assumed to be on what is left, large parts
        # before small ones, so that parts that fit are not said to be more than there is for their order alone.
        for pod in sorted(cluster.pods, key=lambda pod: (not pod.devices, -pod.requests.gpu_milli)):
            row = row_of[pod.node]
            if not _take_foreign(devices[row], pod):
                over.add(pod.node)
            cpu[row] -= pod.requests.cpu_milli
            memory[row] -= pod.requests.memory_bytes
        over.update(nodes[row].name for row in np.flatnonzero((cpu < 0) | (memory < 0)))
        ready = np.array([node.ready for node in nodes], dtype=np.bool_)
        return cls(
            nodes=nodes,
            topology=topology,
            domains=domains_of(nodes, topology),
            row_of=MappingProxyType(row_of),
            device_free_milli=devices,
            cpu_free_milli=np.maximum(cpu, 0),
            memory_free_bytes=np.maximum(memory, 0),
            up=ready & ~np.array([node.cordoned for node in nodes], dtype=np.bool_),
            ready=ready,
            placements=MappingProxyType({}),
            suitability=Suitability(nodes),
            overcommitted=tuple(node.name for node in nodes if node.name in over),
        )

    def hold(self, placement: Placement) -> Self:
        """With the gang on its nodes. Raises PlacementError if the gang is there already, or anything it needs is not
        free; whether nodes suit its roles is the solver's business."""
        name = placement.gang.name
        if name in self.placements:
            raise PlacementError(f"gang {name} is placed already; release it first, or use `exchange`")
        return self._moved(placement, -1, {**self.placements, name: placement})

    def release(self, name: str) -> Self:
        """Without a gang. Raises PlacementError if it is not there."""
        placement = self.placements.get(name)
        if placement is None:
            raise PlacementError(f"gang {name} is not placed")
        return self._moved(placement, 1, {key: held for key, held in self.placements.items() if key != name})

    def exchange(self, placement: Placement) -> Self:
        """With a gang that is there held as this placement instead (grown, shrunk, repaired, moved). A placement
        without pods is a gang that is released."""
        without = self.release(placement.gang.name)
        return without.hold(placement) if placement.pods else without

    def without(self, replicas: Mapping[str, Collection[tuple[str, int]] | None]) -> Self:
        """With many gangs less some of their replicas (role and number; None: all), in one go. Raises PlacementError
        for a gang that is not there."""
        devices = self.device_free_milli.copy()
        cpu, memory = self.cpu_free_milli.copy(), self.memory_free_bytes.copy()
        placements = dict(self.placements)
        for name, some in replicas.items():
            before = placements.pop(name, None)
            if before is None:
                raise PlacementError(f"gang {name} is not placed")
            kept: list[PodPlace] = []
            groups = {group.name: group.requests for group in before.gang.groups}
            for pod in before.pods:
                if some is not None and (pod.role, pod.replica) not in some:
                    kept.append(pod)
                    continue
                row, asks = self.row_of[pod.node], groups[pod.role]
                for device in pod.devices:
                    devices[row, device] += asks.device_share_milli or WHOLE_GPU_MILLI
                cpu[row] += asks.cpu_milli
                memory[row] += asks.memory_bytes
            if kept:
                placements[name] = replace(before, pods=tuple(kept))
        return replace(
            self,
            device_free_milli=devices,
            cpu_free_milli=cpu,
            memory_free_bytes=memory,
            placements=MappingProxyType(placements),
        )

    def with_ready(self, names: Iterable[str], ready: bool) -> Self:
        """Nodes fail or come back. Gangs on them stay as they are until they are exchanged or released."""
        rows = [self.row(name) for name in names]
        now = self.ready.copy()
        now[rows] = ready
        cordoned = np.array([self.nodes[row].cordoned for row in rows], dtype=np.bool_)
        up = self.up.copy()
        up[rows] = ready & ~cordoned
        return replace(self, ready=now, up=up)

    def hit(self, lost: Collection[str]) -> tuple[str, ...]:
        """Gangs that have pods on these nodes, in the order they were placed."""
        gone = set(lost)
        return tuple(name for name, placement in self.placements.items() if placement.nodes & gone)

    def row(self, node: str) -> int:
        """Of a node by name. Raises PlacementError if there is none."""
        try:
            return self.row_of[node]
        except KeyError:
            raise PlacementError(f"node {node} is not of this cluster") from None

    @property
    def whole_free(self) -> Ints:
        """GPUs that are free whole, by node."""
        found: Ints = (self.device_free_milli == WHOLE_GPU_MILLI).sum(axis=1, dtype=np.int64)
        return found

    @property
    def gpu_free_milli(self) -> Ints:
        """Free GPU by node, parts of devices included."""
        found: Ints = np.maximum(self.device_free_milli, 0).sum(axis=1, dtype=np.int64)
        return found

    def _moved(self, placement: Placement, sign: int, placements: Mapping[str, Placement]) -> Self:
        name = placement.gang.name
        groups = {group.name: group for group in placement.gang.groups}
        devices = self.device_free_milli.copy()
        cpu, memory = self.cpu_free_milli.copy(), self.memory_free_bytes.copy()
        for pod in placement.pods:
            row, asks = self.row(pod.node), groups[pod.role].requests
            milli = asks.device_share_milli or WHOLE_GPU_MILLI
            wanted = 1 if asks.device_share_milli else asks.whole_gpus
            if len(set(pod.devices)) != wanted or any(not 0 <= d < self.nodes[row].gpus for d in pod.devices):
                raise PlacementError(
                    f"gang {name}, {pod.role} {pod.replica}: {wanted} devices of node {pod.node} are expected, "
                    f"not {pod.devices}"
                )
            for device in pod.devices:
                devices[row, device] += sign * milli
            cpu[row] += sign * asks.cpu_milli
            memory[row] += sign * asks.memory_bytes
        if sign < 0:
            self._check(placement, devices, cpu, memory)
        return replace(
            self,
            device_free_milli=devices,
            cpu_free_milli=cpu,
            memory_free_bytes=memory,
            placements=MappingProxyType(dict(placements)),
        )

    def _check(self, placement: Placement, devices: NDArray[np.int16], cpu: Ints, memory: Ints) -> None:
        short = ((devices < 0) & (self.device_free_milli >= 0)).any(axis=1) | (cpu < 0) | (memory < 0)
        if short.any():
            node = self.nodes[int(np.flatnonzero(short)[0])].name
            raise PlacementError(f"gang {placement.gang.name}: node {node} has not enough free for it")


def _take_foreign(free: NDArray[np.int16], pod: ForeignPod) -> bool:
    """Takes what a foreign pod has from a node's devices; False if it is more than there is."""
    share = pod.requests.device_share_milli
    wanted = 1 if share else pod.requests.whole_gpus
    milli = share or WHOLE_GPU_MILLI
    there = [device for device in pod.devices if device < len(free) and free[device] != NO_DEVICE][:wanted]
    if len(there) < wanted:
        fitting = [device for device in np.argsort(free, kind="stable").tolist() if free[device] >= milli]
        there += [device for device in fitting if device not in there][: wanted - len(there)]
    enough = len(there) == wanted and all(free[device] >= milli for device in there)
    if len(there) < wanted:  # more is used than there is: what is left of other devices is not free either
        rest = [device for device in np.argsort(-free, kind="stable").tolist() if free[device] > 0]
        there += [device for device in rest if device not in there][: wanted - len(there)]
    for device in there:
        free[device] = max(0, free[device] - milli)
    return enough
