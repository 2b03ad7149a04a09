"""The price of where new content comes to lie, in the cost policy.

What no worker holds of a prompt has to be computed somewhere, stays there, and draws requests: who asks for it again
is sent to where it is. A computed token is found again U times (observed). Each time that brings a request, which takes
longer by O·(b + c·own) for every sequence beside it, and slows each of these by as much. How many that will be is not
known; a worker gets the more requests the more it holds, so they are taken to be the mean of the fleet in proportion to
how full its cache is, and what counts is how much fuller it is than the emptiest.

    placement = min(U · 2·O·(b + c·own) · mean N · (full − least full) / mean full,  M) · (tokens that nobody holds / P)

M is what it costs to move a whole prompt later, when the place turns out to be a bad one: to compute it once more, and
the room that it takes then. Once the bound is reached it does not matter how large U is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.cost.eviction import Filled, times_again
from pointsman.core.policies.cost.load import CostLoad, Floats
from pointsman.core.policies.policy import lowest


def uses(view: FleetView) -> float:
    """How often a computed token will be found in a cache. Before much was seen: as often as is ever believed."""
    outlook = view.outlook
    seen = outlook.found_tokens + outlook.computed_tokens
    return times_again(outlook.found_tokens / seen if seen else 0.0, seen)


def placement_ms(
    request: Request,
    view: FleetView,
    load: CostLoad,
    caches: Filled,
    rows: NDArray[np.intp],
    beside_ms: Floats,
    move_ms: Floats,
) -> Floats | None:
    """Milliseconds, one a worker; None where it makes no difference.

    Args:
        rows: the eligible workers.
        beside_ms: what one sequence more beside it costs a request.
        move_ms: what computing the whole prompt elsewhere costs, with the room for it.
    """
    new, there = (load.new, load.there) if len(rows) == len(view) else (load.new[rows], load.there[rows])
    nobody_holds = lowest(new)
    mean_there = float(np.add.reduce(there)) / len(rows)
    if caches.mean <= caches.least or nobody_holds <= 0 or mean_there <= 0:
        return None
    # Those that may not take it may be emptier.
    fuller = np.maximum(caches.share - caches.least, 0.0)
    brings = (uses(view) * 2 * mean_there / caches.mean) * beside_ms * fuller
    price: Floats = np.minimum(brings, move_ms) * (nobody_holds / max(1, request.prompt_tokens))
    return price
