"""Other front ends of the fleet, as the status document shows them."""

from __future__ import annotations

import msgspec

from pointsman.core.ledger.snapshot import FleetSnapshot
from pointsman.edge.cluster.replicas.replication import Replication


class ReplicaReport(msgspec.Struct):
    """Another front end."""

    replica: str
    """Of this start of it."""
    name: str
    requests: int
    """That it has at workers."""
    silent_ms: float
    complete: bool
    """All that it told is known; else it was asked for everything."""
    gaps: int
    """How often something that it told was lost."""


class ReplicasReport(msgspec.Struct):
    """What a front end knows of the others."""

    replica: str
    """This one."""
    others: list[ReplicaReport]
    trouble: str | None = None
    """Why others may not be found."""


def replica_report(replication: Replication, fleet: FleetSnapshot) -> ReplicasReport | None:
    """None where there are no others and can't be."""
    if replication.alone:
        return None
    others = [
        ReplicaReport(
            other.replica, other.name, fleet.others.get(other.replica, 0), other.silent_ms, other.complete, other.gaps
        )
        for other in replication.statuses()
    ]
    return ReplicasReport(replication.bus.replica, others, replication.trouble)
