"""The stretch of a trace that is simulated: the busiest one, so that what is found there holds for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.workload.cut import kept_only
from pointsman.core.workload.trace import Trace

MOST_COST = 3_000.0
"""About so many requests with short prompts."""
_LONGER = 6.0
"""Where requests come so fast that those are over too soon, up to so many times as many."""
_BLOCKS_A_REQUEST = 150
"""So many blocks of a prompt take as long to simulate as a request does without."""
_MOST_BLOCKS = 50
_LARGEST_BLOCK_TOKENS = 128
_TRIES = 200


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A stretch of consecutive requests."""

    trace: Trace
    first: int
    """Position in the whole trace."""
    of: int
    """Requests of the whole trace."""
    load: float
    """Work that comes in a second there, over that of the whole trace."""

    @property
    def whole(self) -> bool:
        """Nothing was left out."""
        return len(self.trace) == self.of


def coarse_block_tokens(trace: Trace) -> int | None:
    """A block size with which long prompts are simulated sooner, so that more of them can be; None: the trace's own.

    What prompts share beyond the last whole block is lost, so blocks stay far smaller than prompts.
    """
    mean_tokens = sum(request.prompt_tokens for request in trace.requests) / max(len(trace), 1)
    found = trace.block_tokens
    while 0 < 2 * found <= _LARGEST_BLOCK_TOKENS and mean_tokens > _MOST_BLOCKS * found:
        found *= 2
    return None if found == trace.block_tokens else found


def busiest(
    trace: Trace,
    work: NDArray[np.float64],
    most_cost: float = MOST_COST,
    block_tokens: int | None = None,
    lasting_ms: float = 0.0,
) -> Excerpt:
    """The longest stretch that can be simulated for `most_cost`, where `work` comes fastest.

    `block_tokens`: of the simulation; None: the trace's. `lasting_ms`: a stretch that is over sooner is taken longer,
    for at most `_LONGER` times the cost.

    A request whose predecessor lies before the stretch comes at its own time, so the load is that of the trace from the
    first request on; caches are cold.
    """
    size = trace.block_tokens / (block_tokens or trace.block_tokens or 1)
    costs = np.array([1 + size * len(request.block_ids) / _BLOCKS_A_REQUEST for request in trace.requests])
    times = np.array([request.at_ms for request in trace.requests])
    sums = np.concatenate(([0.0], np.cumsum(work)))
    cost = most_cost
    while costs.sum() > cost:
        count = max(1, int(cost / costs.mean()))
        starts = np.unique(np.linspace(0, len(trace) - count, _TRIES).astype(np.int64))
        spans = np.maximum(times[starts + count - 1] - times[starts], 1e-3)
        rates = (sums[starts + count] - sums[starts]) / spans
        best = int(np.argmax(rates))
        if spans[best] >= lasting_ms or cost >= _LONGER * most_cost:
            first, mean = int(starts[best]), sums[-1] / max(trace.duration_ms, 1e-3)
            part = kept_only(trace, range(first, first + count), float(times[first]))
            return Excerpt(part, first, len(trace), float(rates[best] / mean))
        # A tenth more than it lacks, for the next stretch may be a busier one.
        cost = min(_LONGER * most_cost, cost * max(1.1, 1.1 * lasting_ms / float(spans[best])))
    return Excerpt(trace, 0, len(trace), 1.0)
