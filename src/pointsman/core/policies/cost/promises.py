"""The price of broken promises in the cost policy.

A request that misses what it was promised is worth nothing, so all of its time is wasted: the price is its predicted
time, first token and answer, by the chance that it misses. The same for those that decode at a worker and were promised
a time between tokens: by how much likelier they are to miss it with this request beside them. Those that wait there are
computed before it and lose nothing.

Actual times over predicted ones are taken to be lognormal, with the median and the 90th percentile that were seen of
each worker.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost.load import Floats
from pointsman.core.timing.fleet_times import TimeRows

_Z90 = 1.2816
"""Of a normal distribution: how many standard deviations its 90th percentile is above its median."""
_NEVER_MS = 1e12
"""A promise that everybody keeps."""
_LEAST_SPREAD = 0.05
"""Of the logarithm: workers that were seen to be exact until now may be off by so much."""


def miss_chance(predicted_ms: Floats, promised_ms: Floats | float, p50: Floats, p90: Floats) -> Floats:
    """Chance that it takes longer than promised, 0 to 1; a time that is over already is missed for certain.

    The normal distribution function by its logistic approximation, at most .01 off (Bowling et al., 2009).
    """
    spread = np.maximum(np.log(np.maximum(p90 / p50, 1.0)) / _Z90, _LEAST_SPREAD)
    ratio = np.maximum(predicted_ms * p50, 1e-9) / np.maximum(promised_ms, 1e-9)
    z = np.clip(np.log(ratio) / spread, -30.0, 30.0)
    chance: Floats = 1 / (1 + np.exp(-1.702 * z))
    return chance


class Ratios(Protocol):
    """P50 and P90 of actual over predicted times, as TimeRows has them."""

    @property
    def ttft_p50(self) -> Floats:
        """Of first tokens."""
        ...

    @property
    def ttft_p90(self) -> Floats:
        """Of first tokens."""
        ...

    @property
    def step_p50(self) -> Floats:
        """Of steps."""
        ...

    @property
    def step_p90(self) -> Floats:
        """Of steps."""
        ...


def own_misses_ms(
    request: Request, ttft_ms: Floats, completion_ms: Floats, step_ms: Floats, times: Ratios, now_ms: float
) -> Floats | None:
    """Of the request itself; None if it was promised nothing. `step_ms`: between its tokens."""
    slo = request.slo
    if slo is None or (slo.ttft_ms is None and slo.tpot_ms is None):
        return None
    kept = np.ones(len(ttft_ms))
    if slo.ttft_ms is not None:
        left_ms = slo.ttft_ms - (now_ms - request.arrival_ms)
        kept = kept * (1 - miss_chance(ttft_ms, left_ms, times.ttft_p50, times.ttft_p90))
    if slo.tpot_ms is not None:
        kept = kept * (1 - miss_chance(step_ms, slo.tpot_ms, times.step_p50, times.step_p90))
    price: Floats = (1 - kept) * completion_ms
    return price


def others_misses_ms(
    view: FleetView, computed_ms: Floats, output_tokens: float, before_ms: Floats, after_ms: Floats, times: TimeRows
) -> Floats | None:
    """Of those that decode; None if nobody was promised anything. Steps of theirs without and with the request."""
    promised = view.table[Column.SLO_DECODING]
    if not np.count_nonzero(promised):
        return None
    promised_us = view.table[Column.SLO_TPOT_US]
    return _misses_ms(promised, promised_us, computed_ms, output_tokens, before_ms, after_ms, times)


def misses_at_ms(
    rows: NDArray[np.intp],
    view: FleetView,
    computed_ms: Floats,
    output_tokens: float,
    before_ms: Floats,
    after_ms: Floats,
    times: Ratios,
) -> Floats:
    """The same at the workers in these rows, one value a row in all arrays."""
    promised, promised_us = view.table[Column.SLO_DECODING, rows], view.table[Column.SLO_TPOT_US, rows]
    return _misses_ms(promised, promised_us, computed_ms, output_tokens, before_ms, after_ms, times)


def _misses_ms(
    promised: NDArray[np.int64],
    promised_us: NDArray[np.int64],
    computed_ms: Floats,
    output_tokens: float,
    before_ms: Floats,
    after_ms: Floats,
    times: Ratios,
) -> Floats:
    each = np.maximum(promised, 1.0)
    target_ms = np.where(promised > 0, promised_us / each / 1000, _NEVER_MS)
    tokens = max(1.0, output_tokens)
    with_prompt_ms = after_ms + computed_ms / tokens
    without = miss_chance(before_ms, target_ms, times.step_p50, times.step_p90)
    more = miss_chance(with_prompt_ms, target_ms, times.step_p50, times.step_p90) - without
    price: Floats = promised * np.maximum(more, 0.0) * tokens * with_prompt_ms
    return price
