"""Random small clusters and gangs, seeded: mixed nodes, missing labels, shares of devices, all constraints."""

from __future__ import annotations

import random

from pointsman.core.placement.cluster import Cluster, ForeignPod, Node, Taint, Toleration
from pointsman.core.placement.gang import DECODE, PREFILL, Gang, Near, RoleGroup
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology

GIB = 2**30


def random_state(rng: random.Random, most_nodes: int = 8) -> ClusterState:
    """Up to so many nodes in racks and zones, some of them in use, unlabelled, tainted, cordoned or down."""
    count = rng.randint(1, most_nodes)
    racks, zones = rng.randint(1, 4), rng.randint(1, 2)
    levels = [Level("rack", "rack", rng.choice([None, None, 0, 3]))]
    if rng.random() < 0.6:
        levels.append(Level("zone", "zone"))
    if rng.random() < 0.3:
        levels.insert(0, Level("switch", "switch", None))
    nodes, pods = [], []
    uniform = rng.random() < 0.4
    for position in range(count):
        gpus = 4 if uniform else rng.choice([0, 1, 2, 4, 4, 8])
        rack = rng.randrange(racks)
        labels = {"rack": f"r{rack}", "zone": f"z{rng.randrange(zones) if rng.random() < 0.2 else rack % zones}"}
        labels["switch"] = f"s{rng.randrange(2)}"
        for label in list(labels):
            if rng.random() < 0.07:
                labels[label] = ""
            elif rng.random() < 0.05:
                del labels[label]
        if rng.random() < 0.7:
            labels["pool"] = rng.choice(["a", "b"])
        nodes.append(
            Node(
                f"n{position}",
                gpus,
                rng.choice(["h100", "l40"]) if not uniform else "h100",
                rng.choice([4000, 8000, 32000]),
                rng.choice([16, 64, 256]) * GIB,
                labels,
                (Taint("gpu", "yes", rng.choice(["NoSchedule", "PreferNoSchedule"])),) if rng.random() < 0.1 else (),
                cordoned=rng.random() < 0.05,
                ready=rng.random() > 0.05,
            )
        )
        for number in range(rng.choice([0, 0, 0, 1, 2])):
            milli = rng.choice([0, 250, 400, 500, 1000, 2000])
            if milli <= gpus * 1000:
                pods.append(ForeignPod(f"f{number}", "other", f"n{position}", Resources(milli, 1000, GIB)))
    return ClusterState.of(Cluster(tuple(nodes), tuple(pods)), Topology(tuple(levels)))


def random_gang(rng: random.Random, state: ClusterState, name: str = "gang", most_replicas: int = 4) -> Gang:
    """One to three roles with constraints at random levels."""
    names = state.topology.names

    def level(chance: float) -> str | None:
        return rng.choice(names) if rng.random() < chance else None

    groups = []
    for role in [PREFILL, DECODE, "frontend"][: rng.choice([1, 1, 2, 2, 2, 3])]:
        low = rng.randint(0 if rng.random() < 0.2 else 1, most_replicas)
        groups.append(
            RoleGroup(
                role,
                low,
                max(1, low + rng.choice([0, 0, 1, 3])),
                Resources(
                    rng.choice([0, 250, 300, 500, 1000, 1000, 1000, 2000, 4000]),
                    rng.choice([0, 500, 1000, 4000]),
                    rng.choice([0, 1, 8]) * GIB,
                ),
                rng.choice([1, 1, 1, 2, 3]),
                role,
                {"pool": rng.choice([("a",), ("a", "b"), ()])} if rng.random() < 0.15 else {},
                ("h100",) if rng.random() < 0.1 else (),
                (Toleration("gpu", exists=True),) if rng.random() < 0.5 else (),
                level(0.2),
                level(0.2),
                level(0.35),
                level(0.15),
            )
        )
    near = ()
    if len(groups) > 1 and rng.random() < 0.5:
        pairs = [(a.name, b.name) for a in groups for b in groups if a.name < b.name]
        near = tuple(Near(pair, rng.choice(names), rng.random() < 0.6) for pair in rng.sample(pairs, 1))
    return Gang(name, tuple(groups), near, level(0.15), level(0.15))
