"""Actions: what a cycle changes, gang by gang: the difference between what was held and what is held now."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pointsman.core.placement.plan import Placement, PodPlace


class ActionKind(enum.Enum):
    """What happens to a gang. In this order they can be carried out: what is given up first, then what uses it."""

    EVICT = "evict"
    SHRINK = "shrink"
    RESHAPE = "reshape"
    """Elastic replicas are given up, and others are added elsewhere; the floors stay where they are."""
    MOVE = "move"
    REPAIR = "repair"
    PLACE = "place"
    GROW = "grow"


class Cause(enum.Enum):
    """Why."""

    WAITING = "waiting"
    """It was its turn."""
    NODE_LOST = "node lost"
    RECLAIM = "reclaim"
    """Another queue has a right to it."""
    PREEMPTION = "preemption"
    """A gang of the same queue goes first."""
    CONSOLIDATION = "consolidation"
    """Room was made that nobody had to give up."""
    SPARE = "spare"
    """Elastic replicas on what nobody waits for."""


@dataclass(frozen=True, slots=True)
class Why:
    """Cause of a change, and the gang that it was made for if it is another one."""

    cause: Cause
    in_favour_of: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One gang's change. Without `after` the gang waits again, with its age."""

    kind: ActionKind
    gang: str
    before: Placement | None
    after: Placement | None
    why: Why

    @property
    def removed(self) -> tuple[PodPlace, ...]:
        """Pods that are not there any more."""
        after = frozenset(self.after.pods) if self.after else frozenset()
        return tuple(pod for pod in (self.before.pods if self.before else ()) if pod not in after)

    @property
    def added(self) -> tuple[PodPlace, ...]:
        """Pods that are new."""
        before = frozenset(self.before.pods) if self.before else frozenset()
        return tuple(pod for pod in (self.after.pods if self.after else ()) if pod not in before)


def actions_between(
    before: Mapping[str, Placement], after: Mapping[str, Placement], why: Mapping[str, Why]
) -> tuple[Action, ...]:
    """All changes, those that give something up first. Gangs that hold what they held have none."""
    found = []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old is new or (old is not None and new is not None and frozenset(old.pods) == frozenset(new.pods)):
            continue
        reason = why.get(name, Why(Cause.WAITING))
        found.append(Action(_kind(old, new, reason), name, old, new, reason))
    order = list(ActionKind)
    return tuple(sorted(found, key=lambda action: order.index(action.kind)))


def _kind(old: Placement | None, new: Placement | None, why: Why) -> ActionKind:
    if new is None:
        return ActionKind.EVICT
    if old is None:
        return ActionKind.PLACE
    was, now = frozenset(old.pods), frozenset(new.pods)
    if now < was:
        return ActionKind.SHRINK
    if was < now:
        return ActionKind.GROW
    if why.cause is Cause.NODE_LOST:
        return ActionKind.REPAIR
    kept = replace(old, pods=tuple(pod for pod in old.pods if pod in now))
    return ActionKind.RESHAPE if kept.pods and kept.is_whole else ActionKind.MOVE
