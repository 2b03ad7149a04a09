"""The price of room in the caches, in the cost policy.

What a request leaves in a cache takes the place of what was there: least recently used goes first. Of what the fleet
loses so, the share `reuse` (observed, see core/ledger/reuse.py) is needed again and computed again, which takes as much
room once more, and so on: each token of room costs reuse + reuse² + … = reuse / (1 − reuse) computed tokens.

A cache that is emptier than those of the others gives room for less. All of them still being empty makes no difference:
what two workers hold of one prompt is missing later, when they are full.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost.load import CostLoad, Floats
from pointsman.core.policies.policy import lowest

MOST_REUSE = 0.95
"""Losses are followed over 20 computations, not for ever: a share that was seen in a bounded past is never certain."""
BELIEVED_TOKENS = 65_536
"""Lost tokens after which what was seen counts for more than that everything is needed again. Copies that are made
while nothing is known stay for long; those that are not made can be made later."""


def recomputations(view: FleetView) -> float:
    """How many tokens will be computed again for each token of room."""
    return times_again(view.outlook.reuse, view.outlook.evictions_seen)


def times_again(share: float, seen_tokens: float) -> float:
    """share + share² + …, of a share that rests on so many tokens."""
    believed = (share * seen_tokens + MOST_REUSE * BELIEVED_TOKENS) / (seen_tokens + BELIEVED_TOKENS)
    believed = min(MOST_REUSE, believed)
    return believed / (1 - believed)


class Filled(NamedTuple):
    """How full the caches are."""

    share: Floats
    """Of each worker, 0 to 1; 1 where that is not known."""
    least: float
    """Of the eligible ones."""
    mean: float


def filled(view: FleetView, rows: NDArray[np.intp]) -> Filled:
    """`rows`: the eligible workers, at least one."""
    capacity, held = view.table[Column.KV_CAPACITY_TOKENS], view.table[Column.HELD_TOKENS]
    if np.count_nonzero(capacity) == len(capacity):
        share = held / capacity
    else:
        share = np.where(capacity > 0, held / np.maximum(capacity, 1.0), 1.0)
    mine = share if len(rows) == len(share) else share[rows]
    return Filled(share, lowest(mine), float(np.add.reduce(mine)) / len(rows))


def fullness(caches: Filled) -> Floats:
    """1, less by how much emptier each cache is than the mean of the eligible ones."""
    full: Floats = np.minimum(1.0, caches.share + (1.0 - caches.mean))
    return full


def room_tokens(request: Request, view: FleetView, load: CostLoad) -> Floats:
    """Tokens of room that the request takes at each worker: what is new there and the answer."""
    room: Floats = load.new + request.sequences * view.outlook.output_tokens
    return room
