"""What load costs in the cache-aware policies, in prefill tokens.

    price = 128 · load + prompt · max(0, load − (1.1 · mean load + 4))

The first part keeps requests that share little (a common system prompt) from following each other to one worker: it is
worth 128 uncached tokens to go where one request less is running. That is the ratio of what a running request costs the
others in decode time to what an uncached token costs in prefill time, later evictions included: 100 to 500 for the
engines of core/timing/profiles. The second part is a guard: each request above it costs as much as the whole prompt,
which no cache can make up for, so a hot prefix spreads to as many workers as its load needs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOAD_TOKENS = 128
GUARD_FACTOR = 1.1
GUARD_SLACK_REQUESTS = 4


def load_price(
    load: NDArray[np.int64] | NDArray[np.float64], rows: NDArray[np.intp], prompt_tokens: int
) -> NDArray[np.float64]:
    """Prefill tokens that the load of each worker is worth. `rows`: the eligible workers, at least one."""
    guard = GUARD_FACTOR * float(np.add.reduce(load[rows])) / len(rows) + GUARD_SLACK_REQUESTS
    price: NDArray[np.float64] = LOAD_TOKENS * load + prompt_tokens * np.maximum(load - guard, 0.0)
    return price
