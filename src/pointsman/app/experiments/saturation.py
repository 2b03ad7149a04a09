"""Saturation: whether the queue still grew while requests came, so that a longer run would have been worse."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_REQUESTS = 200
"""With fewer nothing is said."""
GROWING_FROM = 0.03
"""Share of arrivals that stays in the queue, from which on the fleet is called too small."""
_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class QueueGrowth:
    """How the number of requests without a first token changed over the second half of the arrivals."""

    share: float
    """Requests that came to the queue for each one that arrived; 0.1: a tenth of the traffic is more than it can do.
    Below 0 while a queue is worked off; nan if too few requests came to say."""
    growing: bool
    """It grew steadily, and by `GROWING_FROM` or more."""


def queue_growth(arrival_ms: Floats, served_ms: Floats) -> QueueGrowth:
    """From arrivals and first tokens (or ends without one; nan: never) of all requests, in any order.

    The queue's length is averaged over each quarter of the arrivals' time. It grows if each quarter after the first
    has more than the one before; how fast, the last two say.
    """
    count = len(arrival_ms)
    if count < FEWEST_REQUESTS:
        return QueueGrowth(float("nan"), False)
    edges = np.linspace(arrival_ms.min(), arrival_ms.max(), _QUARTERS + 1)
    quarter_ms = edges[1] - edges[0]
    if quarter_ms <= 0:
        return QueueGrowth(float("nan"), False)
    lengths = _mean_lengths(arrival_ms, np.where(np.isnan(served_ms), np.inf, served_ms), edges)
    arrivals = np.count_nonzero(arrival_ms > edges[-3]) / 2
    share = float((lengths[-1] - lengths[-2]) / arrivals) if arrivals else 0.0
    steadily = bool(lengths[3] > lengths[2] > lengths[1])
    return QueueGrowth(share, steadily and share >= GROWING_FROM)


def _mean_lengths(arrival_ms: Floats, served_ms: Floats, edges: Floats) -> Floats:
    """Mean requests waiting in each span between two edges."""
    waited = []
    for start, end in pairwise(edges.tolist()):
        overlap = np.minimum(served_ms, end) - np.maximum(arrival_ms, start)
        waited.append(float(np.maximum(overlap, 0.0).sum()) / (end - start))
    return np.array(waited)
