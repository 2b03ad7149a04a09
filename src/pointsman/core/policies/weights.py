"""Weights: how much a worker should get beside another one, as load that is counted several times.

A worker of which s times as much should be taken as of another one has (load + 1) / s beside load + 1: the request that
is decided counts as well, so weights hold where there is hardly any load, too. s is taken to be 1 for the heaviest
of those that may be chosen, so that nowhere less than the true load is seen. Caches, and the time that a prompt of its
own takes, count as ever: weights share load.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.view import Column, Exclusion, FleetView

Floats = NDArray[np.float64]


def load_factors(view: FleetView, rows: NDArray[np.intp]) -> Floats | None:
    """For each worker how often its load counts, 1 or more; None: all weights are equal. `rows`: the eligible ones."""
    weight = view.table[Column.WEIGHT_PERMILLE]
    if not len(weight) or not np.count_nonzero(weight != weight[0]):
        return None
    # Rows of views that were made by hand may have no weight.
    weight = np.where(weight > 0, weight, 1000)
    factors: Floats = weight[rows].max() / weight
    # Workers for prompts only are beside each other, not beside those that answer.
    prompts = (view.table[Column.EXCLUSION] == Exclusion.ROLE).nonzero()[0]
    if len(prompts):
        factors[prompts] = weight[prompts].max() / weight[prompts]
    return np.maximum(factors, 1.0)


def weighted_load(view: FleetView, rows: NDArray[np.intp]) -> NDArray[np.int64] | Floats:
    """Requests in flight, as often as they count."""
    factors = load_factors(view, rows)
    if factors is None:
        return view.load
    load: Floats = (view.load + 1) * factors - 1
    return load
