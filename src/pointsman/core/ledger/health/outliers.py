"""Outliers: one worker's figure beside those of its like, by median and median deviation of logarithms."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_MAD_TO_SIGMA = 1.4826
_LEAST_SIGMA = 0.25
"""Workers that are all alike would make a tenth more an outlier."""
_SIGMAS = 4.0
_ONE_PEER = 2.0
"""How many times further it has to be off where there is but one to compare with."""


def times_slower(score: float, peers: Sequence[float], least_times: float) -> float | None:
    """How many times its peers' median a worker is, if that is far out; None: it is not.

    `score` and `peers` are logarithms of times, larger is slower. `least_times`: below that it is none whatever the
    spread; with one peer twice that. Without peers nobody is far out.
    """
    if not peers:
        return None
    middle = statistics.median(peers)
    beyond = score - middle
    if len(peers) == 1:
        return math.exp(beyond) if beyond >= math.log(_ONE_PEER * least_times) else None
    sigma = max(_LEAST_SIGMA, _MAD_TO_SIGMA * statistics.median(abs(peer - middle) for peer in peers))
    return math.exp(beyond) if beyond >= max(math.log(least_times), _SIGMAS * sigma) else None
