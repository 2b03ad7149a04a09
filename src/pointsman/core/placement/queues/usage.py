"""Usage: what the gangs of every queue hold, and whether a queue may have more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.queues.amounts import KINDS, NONE, UNLIMITED, Amounts, amounts_of, minus, plus, told
from pointsman.core.placement.queues.tree import QueueTree


@dataclass(frozen=True)
class Usage:
    """By queue, those below included. It never changes: `changed` gives a new one."""

    tree: QueueTree
    held: Mapping[str, Amounts]
    firm: Mapping[str, Amounts]
    """Of that, what gangs have that can't be preempted, elastic replicas included."""

    @classmethod
    def of(cls, tree: QueueTree, placements: Iterable[Placement]) -> Usage:
        """What these hold. Gangs of queues that are not there count for nobody."""
        usage = cls(tree, dict.fromkeys(tree.by_name, NONE), dict.fromkeys(tree.by_name, NONE))
        return usage.all_changed((None, placement) for placement in placements)

    def changed(self, before: Placement | None, after: Placement | None) -> Usage:
        """With what a gang holds now instead of what it held."""
        return self.all_changed([(before, after)])

    def all_changed(self, changes: Iterable[tuple[Placement | None, Placement | None]]) -> Usage:
        """The same of many gangs in one go."""
        held, firm = dict(self.held), dict(self.firm)
        parts = ((placement, change) for pair in changes for placement, change in zip(pair, (minus, plus), strict=True))
        for placement, change in parts:
            if placement is None:
                continue
            gang = placement.gang
            amount = held_by(placement)
            for name in self.tree.paths.get(gang.queue, ()):
                held[name] = change(held[name], amount)
                if not gang.preemptible:
                    firm[name] = change(firm[name], amount)
        return Usage(self.tree, held, firm)

    def lessened(self, gone: Iterable[tuple[Gang, Amounts]]) -> Usage:
        """With so much less held by these gangs."""
        held, firm = dict(self.held), dict(self.firm)
        for gang, amount in gone:
            for name in self.tree.paths.get(gang.queue, ()):
                held[name] = minus(held[name], amount)
                if not gang.preemptible:
                    firm[name] = minus(firm[name], amount)
        return Usage(self.tree, held, firm)

    def reduced(self, queue: str, amount: Amounts) -> Usage:
        """With so much less held by gangs that can be preempted."""
        held = dict(self.held)
        for name in self.tree.paths.get(queue, ()):
            held[name] = minus(held[name], amount)
        return Usage(self.tree, held, self.firm)

    def refusal(self, gang: Gang, more: Amounts, firm: Amounts) -> str | None:
        """Why the gang's queue may not have so much more, `firm` of it for good; None if it may.

        Limits hold for all, and what can't be preempted has to stay within the quota.
        """
        if not self.tree.is_leaf(gang.queue):
            there = ", ".join(name for name in self.tree.by_name if self.tree.is_leaf(name))
            return f"there is no queue {gang.queue!r} that gangs can wait in; one of {there} is expected"
        for name in self.tree.paths[gang.queue]:
            queue = self.tree.by_name[name]
            for kind in range(3):
                has, bound = self.held[name][kind], queue.limit.amounts[kind]
                if more[kind] and has + more[kind] > bound:
                    return (
                        f"queue {name} may have at most {told(kind, bound)}: it has {told(kind, has)}, "
                        f"and {told(kind, more[kind])} more are asked for"
                    )
                has, bound = self.firm[name][kind], queue.quota.amounts[kind]
                if firm[kind] and has + firm[kind] > bound:
                    return (
                        f"queue {name} has a quota of {told(kind, bound)}, and gangs that can't be preempted must stay "
                        f"within it: they have {told(kind, has)}, and {told(kind, firm[kind])} more are asked for"
                    )
        return None

    def refusal_of(self, after: Placement, before: Placement | None) -> str | None:
        """Why a gang may not hold `after` instead of what it holds here, `before`; None if it may. Gangs of queues that
        are not there count for nobody, so nothing is said of them."""
        if after.gang.queue not in self.tree.by_name:
            return None
        more = held_by(after) if before is None else minus(held_by(after), held_by(before))
        return self.refusal(after.gang, more, NONE if after.gang.preemptible else more)

    def within(self, names: Iterable[str], bounds: Mapping[str, Amounts], more: Amounts) -> bool:
        """Whether all of these queues stay within these bounds with so much more, of what is asked for."""
        return all(
            self.held[name][kind] + more[kind] <= bounds[name][kind]
            for name in names
            for kind in range(3)
            if more[kind]
        )

    def over(self, names: Iterable[str], bounds: Mapping[str, Amounts], asked: Amounts) -> bool:
        """Whether all of these queues have more than these bounds of something that is asked for."""
        return all(
            any(self.held[name][kind] > bounds[name][kind] for kind in range(3) if asked[kind]) for name in names
        )

    def room(self, gang: Gang) -> Amounts:
        """What a queue may still have for a gang: up to every limit above, and to every quota if the gang can't be
        preempted."""
        found = [UNLIMITED] * len(KINDS)
        for name in self.tree.paths.get(gang.queue, ()):
            queue = self.tree.by_name[name]
            for kind in range(3):
                left = queue.limit.amounts[kind] - self.held[name][kind]
                if not gang.preemptible:
                    left = min(left, queue.quota.amounts[kind] - self.firm[name][kind])
                found[kind] = min(found[kind], max(0, left))
        return found[0], found[1], found[2]


def held_by(placement: Placement) -> Amounts:
    """What the pods of a gang hold."""
    return amounts_of(placement.requests)


def floor_of(gang: Gang) -> Amounts:
    """What its floors ask for."""
    return amounts_of(gang.floor)


def firm_part(gang: Gang) -> Amounts:
    """What of it can't be preempted."""
    return NONE if gang.preemptible else floor_of(gang)


def wish_of(gang: Gang) -> Amounts:
    """What it asks for with all its elastic replicas."""
    return amounts_of(gang.wish)
