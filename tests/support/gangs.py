"""Small clusters and gangs for tests of placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.core.placement.cluster import Cluster, Node
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology

TOPOLOGY = Topology((Level("rack", "rack"), Level("zone", "zone")))


def still() -> float:
    """A clock on which no time passes: nothing that is tested depends on how fast this machine is."""
    return 0.0


def empty(nodes: int, gpus: int = 8, per_rack: int = 4, racks_per_zone: int = 2) -> ClusterState:
    """Nodes n0, n1, … in racks and zones; nothing is placed."""
    made = (
        Node(
            f"n{at}",
            gpus,
            "H100",
            labels={"rack": f"r{at // per_rack}", "zone": f"z{at // per_rack // racks_per_zone}"},
        )
        for at in range(nodes)
    )
    return ClusterState.of(Cluster(tuple(made)), TOPOLOGY)


def role(name: str, replicas: int, gpus: float = 8, most: int | None = None, **fields: object) -> RoleGroup:
    """So many pods of so many GPUs, up to `most`."""
    requests = Resources(gpu_milli=round(gpus * 1000))
    return RoleGroup(name, replicas, most or replicas, requests, **fields)  # type: ignore[arg-type]


def gang(name: str, replicas: int = 1, gpus: float = 8, most: int | None = None, **fields: object) -> Gang:
    """Of one role."""
    return Gang(name, (role("worker", replicas, gpus, most),), **fields)  # type: ignore[arg-type]


def pair(name: str, prefill: int, decode: int, gpus: float = 8, **fields: object) -> Gang:
    """Prefill and decode."""
    groups = (
        role("prefill", prefill, gpus, stage="prefill"),
        role("decode", decode, gpus, stage="decode"),
    )
    return Gang(name, groups, **fields)  # type: ignore[arg-type]


def faults(state: ClusterState, start: ClusterState) -> list[str]:
    """Everything that is wrong with what a state holds, counted anew from the pods. `start`: with nothing placed."""
    found: list[str] = []
    free = start.device_free_milli.copy()
    for placement in state.placements.values():
        found += _faults_of(placement, state)
        for pod in placement.pods:
            asks = placement.gang.group(pod.role).requests
            for device in pod.devices:
                free[start.row_of[pod.node], device] -= asks.device_share_milli or 1000
    if (free[start.device_free_milli >= 0] < 0).any():
        found.append("a GPU is booked twice")
    if (free != state.device_free_milli).any():
        found.append("the state counts other free GPUs than its pods leave")
    return found


def _faults_of(placement: Placement, state: ClusterState) -> list[str]:
    gang = placement.gang
    found = [] if placement.is_whole else [f"{gang.name} is there in part"]
    for scope in gang.scopes():
        if scope.required:
            nodes = {pod.node for pod in placement.pods if pod.role in scope.roles}
            if len(_domains(state, nodes, scope.level)) > 1:
                found.append(f"{gang.name}: {scope.origin} is broken")
    found += [
        f"{gang.name}: {pod.role} {pod.replica} has {len(pod.devices)} GPUs"
        for pod in placement.pods
        if len(pod.devices) != -(-gang.group(pod.role).requests.gpu_milli // 1000)
    ]
    return found


def _domains(state: ClusterState, nodes: Iterable[str], level: str) -> set[int]:
    ids = state.domains.of_node[state.topology.index(level)]
    return {int(ids[state.row_of[node]]) for node in nodes}


def running(state: ClusterState, at_s: float = 0.0) -> Mapping[str, float]:
    """Since when, for all gangs of a state."""
    return dict.fromkeys(state.placements, at_s)
