"""Large clusters and gangs of several shapes, seeded, for measuring how placement scales."""

from __future__ import annotations

import random

from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.gang import DECODE, PREFILL, Gang, Near, RoleGroup
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology

GIB = 2**30
TOPOLOGY = Topology((Level("switch", "switch"), Level("rack", "rack"), Level("zone", "zone")))
NODES_A_SWITCH, SWITCHES_A_RACK, RACKS_A_ZONE = 8, 4, 8
GPUS_A_NODE = 8


def fleet(nodes: int, use: float, seed: int = 1) -> ClusterState:
    """Nodes of eight GPUs, 32 a rack, 256 a zone; `use` is how likely each further pod of others is on a node: at 0.5
    a third of the GPUs is taken, in pieces, and hardly two nodes are alike."""
    rng = random.Random(seed)
    rows, pods = [], []
    for at in range(nodes):
        switch = at // NODES_A_SWITCH
        rack = switch // SWITCHES_A_RACK
        labels = {"switch": f"s{switch}", "rack": f"r{rack}", "zone": f"z{rack // RACKS_A_ZONE}"}
        rows.append(Node(f"n{at}", GPUS_A_NODE, "h100", 128_000, 1024 * GIB, labels))
        taken = 0
        while taken < GPUS_A_NODE and rng.random() < use:
            milli = rng.choice((500, 1000, 1000, 2000, 4000))
            taken += -(-milli // 1000)
            if taken <= GPUS_A_NODE:
                asks = Resources(milli, rng.randrange(1000, 16_000), rng.randrange(GIB, 64 * GIB))
                pods.append(ForeignPod(f"p{at}-{taken}", "others", f"n{at}", asks))
    return ClusterState.of(Cluster(tuple(rows), tuple(pods)), TOPOLOGY)


def _pod(gpus: int) -> Resources:
    return Resources(gpus * 1000, 4000, 8 * GIB)


def gangs() -> dict[str, Gang]:
    """Shapes by name; the number in front of the × is replicas, behind it GPUs."""
    shapes: dict[str, tuple[tuple[RoleGroup, ...], tuple[Near, ...]]] = {
        "64×8": ((RoleGroup("worker", 64, 64, _pod(8)),), ()),
        "512×8": ((RoleGroup("worker", 512, 512, _pod(8)),), ()),
        "512×1": ((RoleGroup("worker", 512, 512, _pod(1)),), ()),
        "8 engines over 4 nodes, each in one switch": (
            (RoleGroup("worker", 8, 8, _pod(8), pods_per_replica=4, replica_required="switch"),),
            (),
        ),
        "prefill 8×4, decode 16×8": ((RoleGroup(PREFILL, 8, 8, _pod(4)), RoleGroup(DECODE, 16, 16, _pod(8))), ()),
        "prefill 4×4 near decode 8×8, one rack": (
            (RoleGroup(PREFILL, 4, 4, _pod(4)), RoleGroup(DECODE, 8, 8, _pod(8))),
            (Near((PREFILL, DECODE), "rack"),),
        ),
        "prefill 64×1, decode 64×2": ((RoleGroup(PREFILL, 64, 64, _pod(1)), RoleGroup(DECODE, 64, 64, _pod(2))), ()),
        "prefill 256×1, decode 256×2": (
            (RoleGroup(PREFILL, 256, 256, _pod(1)), RoleGroup(DECODE, 256, 256, _pod(2))),
            (),
        ),
        "prefill 16×2, decode 32×1, front end 4": (
            (
                RoleGroup(PREFILL, 16, 16, _pod(2)),
                RoleGroup(DECODE, 32, 32, _pod(1)),
                RoleGroup("front", 4, 4, _pod(0)),
            ),
            (),
        ),
        "four roles of 16": (tuple(RoleGroup(f"role{at}", 16, 16, _pod(2 ** (at % 3))) for at in range(4)), ()),
        "four roles of 64": (tuple(RoleGroup(f"role{at}", 64, 64, _pod(2 ** (at % 3))) for at in range(4)), ()),
    }
    return {name: Gang("gang", groups, near) for name, (groups, near) in shapes.items()}
