"""Order: which waiting gang is next.

Down the tree, the sibling that has least of what it should have: first those below their fair share, of these those
that stay within it with the gang, then those that stay within their quota with it, then by priority of the queue, by
the dominant share that they would have with the gang, and by age. In a queue: higher priority, then age.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.queues.amounts import Amounts, plus
from pointsman.core.placement.queues.tree import ROOT, Queue, QueueTree
from pointsman.core.placement.queues.usage import Usage, floor_of

_Key = tuple[bool, bool, bool, int, float, float, str]


def in_queue(gang: Gang) -> tuple[int, float, str]:
    """Sorts the gangs of one queue."""
    return -gang.priority, gang.submitted_at_s, gang.name


class FairOrder:
    """Gangs one after another; what was placed meanwhile counts for the next choice."""

    def __init__(self, tree: QueueTree, shares: Mapping[str, Amounts], gangs: Iterable[Gang]) -> None:
        self._tree = tree
        self._shares = shares
        self._waiting: dict[str, list[Gang]] = {}
        for gang in sorted(gangs, key=in_queue, reverse=True):
            self._waiting.setdefault(gang.queue, []).append(gang)

    def next(self, usage: Usage) -> Gang | None:
        """The next one, which then waits no longer; None when there is none. Queues that are not there come last."""
        gang = self._best(ROOT, usage)
        if gang is None:
            rest = [name for name, waiting in self._waiting.items() if waiting]
            return self._waiting[min(rest)].pop() if rest else None
        return self._waiting[gang.queue].pop()

    def _best(self, name: str, usage: Usage) -> Gang | None:
        children = self._tree.children[name]
        if not children:
            waiting = self._waiting.get(name)
            return waiting[-1] if waiting else None
        found = [(child, gang) for child in children if (gang := self._best(child.name, usage)) is not None]
        if len(found) < 2:
            return found[0][1] if found else None
        return min(found, key=lambda pair: self._key(pair[0], pair[1], usage))[1]

    def _key(self, queue: Queue, gang: Gang, usage: Usage) -> _Key:
        held, share, quota = usage.held[queue.name], self._shares[queue.name], queue.quota.amounts
        asked = floor_of(gang)
        with_gang = plus(held, asked)
        kinds = [kind for kind in range(3) if asked[kind]]
        over_share = any(held[kind] >= share[kind] for kind in kinds)
        goes_over = any(with_gang[kind] > share[kind] for kind in kinds)
        over_quota = any(with_gang[kind] > quota[kind] for kind in kinds)
        dominant = max((with_gang[kind] / share[kind] if share[kind] else float("inf") for kind in kinds), default=0.0)
        return over_share, goes_over, over_quota, -queue.priority, dominant, gang.submitted_at_s, gang.name
