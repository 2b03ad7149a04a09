"""The price of evictions in the cost policy.

A request needs room for its new tokens and its answer. What is not free is taken from what the worker's cache holds,
least recently used first. Of what is evicted the share `reuse` (observed, see core/ledger/reuse.py) is needed again
and computed again, which evicts as much once more, of which the same share is needed again, and so on: each evicted
token costs reuse + reuse² + … = reuse / (1 − reuse) computed ones. A computed token costs its request d, and each of
the N that decode beside it, too.
"""

from __future__ import annotations

import numpy as np

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost_load import CostLoad, Floats
from pointsman.core.timing.fleet_times import TimeRows

MOST_REUSE = 0.99
"""A share that is measured from a bounded past is never certain to be more."""


def eviction_ms(request: Request, view: FleetView, load: CostLoad, times: TimeRows) -> Floats | None:
    """Milliseconds, one a worker; None where nothing that was evicted was ever needed again."""
    reuse = min(MOST_REUSE, view.outlook.reuse)
    if reuse <= 0:
        return None
    capacity, held = load.table[Column.KV_CAPACITY_TOKENS], load.table[Column.HELD_TOKENS]
    need = load.new + request.sequences * view.outlook.output_tokens
    # Where either is unknown nothing is known to be evicted.
    evicted = np.where(capacity > 0, np.maximum(0.0, need + held - capacity), 0.0)
    price: Floats = reuse / (1 - reuse) * evicted * times.d * (1 + load.there)
    return price
