"""Refusal: a gang that its queue may not have, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pointsman.core.placement.attempt import possible
from pointsman.core.placement.changes import fewer_replicas
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.optimize import Timer
from pointsman.core.placement.plan import Change, Reason, Unplaced
from pointsman.core.placement.queues.amounts import NONE, amounts_of
from pointsman.core.placement.queues.usage import Usage, firm_part, floor_of
from pointsman.core.placement.resources import NOTHING
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError


def refused(state: ClusterState, gang: Gang, usage: Usage, timer: Timer) -> Unplaced | None:
    """Why the gang's queue may not have its floors, with the changes that make them fit the queue and the cluster; None
    if it may have them."""
    text = usage.refusal(gang, floor_of(gang), firm_part(gang))
    if text is None:
        return None
    answer = Unplaced(gang, Reason.QUOTA_EXCEEDED, f"{text[:1].upper()}{text[1:]}.", constraint="queue")
    if not usage.tree.is_leaf(gang.queue):
        return answer
    floors = {group.name: group.min_replicas for group in gang.groups}
    changes: list[Change] = []
    try:
        soft = replace(gang, preemptible=True)
        may_be_soft = not gang.preemptible and usage.refusal(soft, floor_of(soft), NONE) is None
        if may_be_soft and possible(state, gang, floors, timer):
            changes.append(Change("preemptible", "preemptible: true, so that others may evict it"))

        def may_have(replicas: Mapping[str, int]) -> bool:
            total = NOTHING
            for group in gang.groups:
                total = total + group.requests.times(group.pods_per_replica * replicas.get(group.name, 0))
            asked = amounts_of(total)
            return usage.refusal(gang, asked, NONE if gang.preemptible else asked) is None

        fewer = fewer_replicas(state, gang, floors, None, timer, may_have)
        if fewer is not None:
            changes.append(fewer)
    except BudgetSpentError:
        pass
    return replace(answer, changes=tuple(changes))
