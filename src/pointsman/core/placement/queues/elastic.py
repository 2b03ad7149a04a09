"""Elastic: how many replicas above its floors a gang may have before its queue has all that it may."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.queues.amounts import Amounts, amounts_of


@dataclass(frozen=True)
class Capped:
    """A gang with less than it asks for. `barred` are roles that may have none: a role group is always at least 1, so
    what is placed for `gang` has to go through `allowed`."""

    gang: Gang
    barred: frozenset[str]
    full: Gang

    def most(self, role: str) -> int:
        """Replicas of a role that it may have."""
        return 0 if role in self.barred else self.gang.group(role).max_replicas

    def allowed(self, placement: Placement) -> Placement:
        """What was placed for the capped gang as a placement of the full one, without barred roles."""
        pods = tuple(pod for pod in placement.pods if pod.role not in self.barred)
        return replace(placement, gang=self.full, pods=pods)


def capped(gang: Gang, have: Placement, room: Amounts) -> Capped:
    """The gang with no more replicas than it has and the room allows; the role that asks for most more is cut first."""
    sizes = {group.name: amounts_of(group.requests.times(group.pods_per_replica)) for group in gang.groups}
    more = {group.name: max(0, group.max_replicas - have.replicas[group.name]) for group in gang.groups}
    for kind in range(len(room)):
        _cut(more, {name: size[kind] for name, size in sizes.items() if size[kind]}, room[kind])
    most = {name: have.replicas[name] + count for name, count in more.items()}
    groups = tuple(replace(group, max_replicas=most[group.name] or 1) for group in gang.groups)
    return Capped(replace(gang, groups=groups), frozenset(name for name, count in most.items() if not count), gang)


def _cut(more: dict[str, int], sizes: dict[str, int], room: int) -> None:
    """Makes the largest counts smaller until all fit into the room."""

    def fits(most: int) -> bool:
        return sum(size * min(more[name], most) for name, size in sizes.items()) <= room

    low, high = 0, max((more[name] for name in sizes), default=0)
    if fits(high):
        return
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    for name in sizes:
        more[name] = min(more[name], high)
    for name in sizes:
        if more[name] == high and not fits(high):
            more[name] -= 1
