"""Fair shares: how much of each resource every queue should have, given what it asks for.

For each resource by itself, down the tree: every queue first gets what it is owed, as far as it asks for it. What is
left goes to the siblings of the highest priority, in rounds by weight, whole GPUs at a time, until they have all they
ask for; then to those of the next priority. (The rule of the KAI scheduler, with two differences: siblings that are
owed more than their parent has get it cut in proportion, so that shares never add up to more than there is; and past
use is not weighed.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pointsman.core.placement.queues.amounts import NONE, UNITS, Amounts, least, plus
from pointsman.core.placement.queues.tree import ROOT, Queue, QueueTree

_WEIGHT_STEPS = 1000
"""Weights count in thousandths, so that everything is computed in whole numbers."""


def requests_up(tree: QueueTree, requests: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """What each queue asks for, of what its own gangs and those below it ask for; no more than its limit."""
    found: dict[str, Amounts] = {}

    def of(queue: Queue) -> Amounts:
        total = requests.get(queue.name, NONE)
        for child in tree.children[queue.name]:
            total = plus(total, of(child))
        found[queue.name] = least(total, queue.limit.amounts)
        return found[queue.name]

    for queue in tree.children[ROOT]:
        of(queue)
    return found


def fair_shares(tree: QueueTree, total: Amounts, requests: Mapping[str, Amounts]) -> dict[str, Amounts]:
    """Share of every queue. `requests`: what the gangs of each queue hold and wait for together.

    Siblings never get more than their parent together, and nobody more than it asks for.
    """
    asked = requests_up(tree, requests)
    found: dict[str, Amounts] = {}

    def down(parent: str, amount: Amounts) -> None:
        queues = tree.children[parent]
        parts = [
            _shared(
                amount[kind],
                [queue.quota.amounts[kind] for queue in queues],
                [asked[queue.name][kind] for queue in queues],
                queues,
                UNITS[kind],
            )
            for kind in range(3)
        ]
        for at, queue in enumerate(queues):
            found[queue.name] = parts[0][at], parts[1][at], parts[2][at]
            down(queue.name, found[queue.name])

    down(ROOT, total)
    return found


def _shared(amount: int, quotas: Sequence[int], asked: Sequence[int], queues: Sequence[Queue], unit: int) -> list[int]:
    """One resource among siblings."""
    owed = [min(quota, want) for quota, want in zip(quotas, asked, strict=True)]
    if sum(owed) >= amount:
        return divide(amount, owed, owed, unit)
    given = list(owed)
    left = amount - sum(owed)
    for priority in sorted({queue.priority for queue in queues}, reverse=True):
        mine = [at for at, queue in enumerate(queues) if queue.priority == priority]
        extra = divide(
            left,
            [asked[at] - given[at] for at in mine],
            [round(queues[at].over_quota_weight * _WEIGHT_STEPS) for at in mine],
            unit,
        )
        for at, more in zip(mine, extra, strict=True):
            given[at] += more
            left -= more
    return given


def divide(amount: int, wants: Sequence[int], weights: Sequence[int], unit: int) -> list[int]:
    """An amount by weight, to nobody more than it wants, in whole units where it wants whole units.

    Rounds: who would get all it wants gets that, and the others share again. What whole units leave over goes one unit
    each by largest remainder, then in the order given.
    """
    given = [0] * len(wants)
    left = amount
    open_ = [at for at, want in enumerate(wants) if want > 0 and weights[at] > 0]
    while open_ and left > 0:
        total = sum(weights[at] for at in open_)
        full = [at for at in open_ if left * weights[at] >= wants[at] * total]
        if not full:
            break
        for at in full:
            given[at] = wants[at]
        left -= sum(wants[at] for at in full)
        open_ = [at for at in open_ if at not in full]
    if not open_ or left <= 0:
        return given
    total, rest = sum(weights[at] for at in open_), left
    for at in open_:
        given[at] = rest * weights[at] // (total * unit) * unit
        left -= given[at]
    for at in sorted(open_, key=lambda at: -(rest * weights[at] % (total * unit))):
        more = min(unit, left, wants[at] - given[at])
        given[at] += more
        left -= more
    return given
