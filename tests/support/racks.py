"""Small clusters in racks and zones, and gangs on them, for tests of placement."""

from __future__ import annotations

from collections.abc import Callable

from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Unplaced
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology

GIB = 2**30
TOPOLOGY = Topology((Level("rack", "rack"), Level("zone", "zone")))


def gpus(count: float, cpu_milli: int = 0) -> Resources:
    """What a pod of so many GPUs asks for."""
    return Resources(round(count * 1000), cpu_milli)


def node(name: str, rack: str = "r0", zone: str = "z0", gpus: int = 8, **changes: object) -> Node:
    """A node of eight GPUs; an empty rack or zone is none."""
    labels = {"rack": rack, "zone": zone}
    return Node(name, gpus, "h100", 64000, 512 * GIB, labels, **changes)  # type: ignore[arg-type]


def state(*nodes: Node, used: dict[str, float] | None = None, topology: Topology = TOPOLOGY) -> ClusterState:
    """Nodes, some of whose GPUs others use."""
    pods = tuple(ForeignPod(f"of-{name}", "others", name, gpus(count)) for name, count in (used or {}).items())
    return ClusterState.of(Cluster(nodes, pods), topology)


def racks(*sizes: int, zones: int = 1) -> ClusterState:
    """Racks of so many nodes of eight GPUs: n0-0, n0-1 in r0 and so on, in zones in turn."""
    return state(
        *(
            node(f"n{rack}-{at}", f"r{rack}", f"z{rack % zones}")
            for rack, size in enumerate(sizes)
            for at in range(size)
        )
    )


def ticking(step_s: float = 0.0) -> Callable[[], float]:
    """A clock that goes on by so much whenever it is read."""
    now = [0.0]

    def read() -> float:
        now[0] += step_s
        return now[0]

    return read


def placed(where: ClusterState, gang: Gang, **how: object) -> Placement:
    """The placement; fails if there is none."""
    found = place(where, gang, budget_s=60.0, clock_s=ticking(), **how)  # type: ignore[arg-type]
    assert isinstance(found, Placement), found
    return found


def refused(where: ClusterState, gang: Gang, **how: object) -> Unplaced:
    """Why it is not placed; fails if it is."""
    found = place(where, gang, budget_s=60.0, clock_s=ticking(), **how)  # type: ignore[arg-type]
    assert isinstance(found, Unplaced), found
    return found


def racks_of(where: ClusterState, placement: Placement, role: str) -> list[str]:
    """Racks of a role's pods, one for each pod."""
    return sorted(where.nodes[where.row(pod.node)].labels["rack"] for pod in placement.pods if pod.role == role)
