"""Explanation: why a gang is not placed."""

from __future__ import annotations

from collections.abc import Mapping

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Placement, Reason, Unplaced
from pointsman.core.placement.state import ClusterState


def reason_of(
    state: ClusterState,
    gang: Gang,
    wanted: Mapping[str, int],
    kept: Placement | None,
    timer: Timer,
    *,
    proved: bool,
) -> Unplaced:
    """Placeholder."""
    return Unplaced(gang, Reason.INSUFFICIENT_CAPACITY, "", proved=proved)


explain = reason_of
