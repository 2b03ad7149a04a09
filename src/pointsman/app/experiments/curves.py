"""Curves: what the plots of a run show, a few hundred numbers instead of an entry a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.app.simulate.outcome import Outcome

QUANTILES = (*(x / 100 for x in range(0, 90, 2)), *(0.9 + x / 200 for x in range(18)), 0.99, 0.993, 0.996, 0.999, 1.0)
"""Shares of requests at which TTFTs are kept; denser at the end, where P99 is."""
MOST_BINS = 48
_REQUESTS_A_BIN = 20


@dataclass(frozen=True, slots=True)
class Curves:
    """Lists of numbers, nan where nothing was measured."""

    ttft_ms: tuple[float, ...]
    """TTFT at each of `QUANTILES`; empty if no request got a token."""
    bins_ms: tuple[float, ...]
    """Middles of equal spans of time, from the first arrival."""
    ttft_p90_ms: tuple[float, ...]
    """P90 TTFT of the requests that came in each span."""
    busy_share: tuple[float, ...]
    """Share of the run's time in which each worker computed."""


def curves_of(outcome: Outcome) -> Curves:
    """Those of a run."""
    ttft_ms = outcome.ttft_ms
    known = ~np.isnan(ttft_ms)
    quantiles = np.quantile(ttft_ms[known], QUANTILES).tolist() if known.any() else []
    start_ms, end_ms = float(outcome.arrival_ms.min()), float(outcome.arrival_ms.max())
    count = int(np.clip(len(outcome) // _REQUESTS_A_BIN, 1, MOST_BINS))
    edges = np.linspace(start_ms, max(end_ms, start_ms + 1e-6), count + 1)
    place = np.clip(np.searchsorted(edges, outcome.arrival_ms, side="right") - 1, 0, count - 1)
    over_time = []
    for number in range(count):
        inside = ttft_ms[known & (place == number)]
        over_time.append(float(np.quantile(inside, 0.9)) if len(inside) else float("nan"))
    middles = ((edges[:-1] + edges[1:]) / 2 - start_ms).tolist()
    run_ms = max(outcome.ended_ms - outcome.started_ms, 1e-9)
    busy = tuple(worker.busy_ms / run_ms for worker in outcome.workers)
    return Curves(tuple(quantiles), tuple(middles), tuple(over_time), busy)


def mean_curves(several: Sequence[Curves]) -> Curves:
    """The mean of some runs of one policy that differ by seed; medians would hide a seed in which it went wrong."""
    least = min(len(each.bins_ms) for each in several)
    return Curves(
        _mean([each.ttft_ms for each in several if each.ttft_ms]),
        _mean([_thinned(each.bins_ms, least) for each in several]),
        _mean([_thinned(each.ttft_p90_ms, least) for each in several]),
        _mean([each.busy_share for each in several]),
    )


def _thinned(values: Sequence[float], count: int) -> tuple[float, ...]:
    """So many of them, from the first span to the last: made traffic has more spans under some seeds than others."""
    return tuple(values[int((2 * number + 1) * len(values) / (2 * count))] for number in range(count))


def _mean(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    if not rows:
        return ()
    values = np.array(rows, dtype=np.float64)
    known = np.count_nonzero(~np.isnan(values), axis=0)
    sums = np.nansum(values, axis=0)
    return tuple(np.where(known, sums / np.maximum(known, 1), np.nan).tolist())
