"""Victims: what may be given up for a gang: elastic replicas first, then whole gangs, the least important newest first.

Within its queue a gang may take elastic replicas of gangs of no higher priority, and preemptible gangs of lower
priority. From other queues it may take what they have above their fair share, if its own queue stays within its fair
share with it; or what they have above their quota, if its own queue stays within its quota. What a queue has at or
below its share is never taken, so two queues can't take from each other in turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.queues.amounts import Amounts, amounts_of, minus
from pointsman.core.placement.queues.books import Books
from pointsman.core.placement.queues.usage import Usage, floor_of, held_by


@dataclass(frozen=True, slots=True)
class Unit:
    """One elastic replica, or (`role` None) all that is left of a gang."""

    gang: str
    role: str | None = None
    replica: int = 0


def own_units(books: Books, gang: Gang) -> list[Unit]:
    """Of the gang's own queue."""
    mine = [p for p in _running(books, gang) if p.gang.queue == gang.queue]
    mine.sort(key=lambda placement: _worth(books, placement))
    queue = books.tree.by_name[gang.queue]
    units = [unit for p in mine if p.gang.priority <= gang.priority for unit in _elastic(p)]
    for placement in mine:
        victim = placement.gang
        yields = victim.preemptible and victim.priority < gang.priority
        if yields and _has_run(books, victim, queue.preempt_min_runtime_s):
            units.append(Unit(victim.name))
    return units


def others_units(books: Books, gang: Gang, usage: Usage) -> list[Unit]:
    """Of other queues, as long as they have more than they should. `usage`: with what the gang's own queue gives up."""
    asked = floor_of(gang)
    units: list[Unit] = []
    others = [p for p in _running(books, gang) if p.gang.queue != gang.queue and books.tree.is_leaf(p.gang.queue)]
    rights = {queue: _right(books, gang, queue, usage) for queue in dict.fromkeys(p.gang.queue for p in others)}
    others = [p for p in others if rights[p.gang.queue] is not None]
    sides = {queue: books.tree.sides(gang.queue, queue)[1] for queue in rights}
    others.sort(key=lambda placement: _worth(books, placement))
    left = {p.gang.name: held_by(p) for p in others}
    for whole in (False, True):
        for placement in others:
            victim = placement.gang
            bounds = rights[victim.queue]
            assert bounds is not None
            theirs = sides[victim.queue]
            min_runtime_s = books.tree.by_name[victim.queue].reclaim_min_runtime_s
            if whole and not (victim.preemptible and _has_run(books, victim, min_runtime_s)):
                continue
            for unit in (Unit(victim.name),) if whole else _elastic(placement):
                if not usage.over(theirs, bounds, asked):
                    break
                gives = left[victim.name]
                if unit.role is not None:
                    group = victim.group(unit.role)
                    gives = amounts_of(group.requests.times(group.pods_per_replica))
                usage = usage.reduced(victim.queue, gives)
                left[victim.name] = minus(left[victim.name], gives)
                units.append(unit)
    return units


def may_reclaim(books: Books, gang: Gang, victim_queue: str, usage: Usage) -> bool:
    """Whether the gang's queue has a right to what this one has too much, with this usage."""
    return _right(books, gang, victim_queue, usage) is not None


def _right(books: Books, gang: Gang, victim_queue: str, usage: Usage) -> Mapping[str, Amounts] | None:
    """What the victim has to keep: its fair share, its quota, or (None) everything."""
    mine, _ = books.tree.sides(gang.queue, victim_queue)
    asked, owed = floor_of(gang), books.tree.quotas
    if usage.within(mine, owed, asked):
        return owed
    return books.shares if usage.within(mine, books.shares, asked) else None


def _running(books: Books, gang: Gang) -> list[Placement]:
    """Gangs that were there before this cycle, this one left out."""
    return [p for name, p in books.state.placements.items() if name in books.since_s and name != gang.name]


def _worth(books: Books, placement: Placement) -> tuple[int, float, str]:
    """What is given up last has most: priority, then how long it has run."""
    gang = placement.gang
    return gang.priority, -books.since_s[gang.name], gang.name


def _elastic(placement: Placement) -> list[Unit]:
    """Replicas above the floors."""
    return [Unit(placement.gang.name, role, replica) for role, replica in placement.above_floors]


def _has_run(books: Books, gang: Gang, min_runtime_s: float) -> bool:
    ran_s = books.runs_for_s(gang.name)
    return ran_s is not None and ran_s >= max(gang.min_runtime_s, min_runtime_s)
