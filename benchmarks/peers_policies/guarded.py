"""The longest match with a guard against load: SMG's cache_aware, AIBrix's prefix policy, and the plain guard."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats
from peers_policies.scored import Scored, best_match, only
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView


class SmgCacheAware(Scored):
    """Shortest queue when loads differ by more than 64 and by half; else the best match of more than .3."""

    name = "SMG cache_aware (64, 1.5, .3)"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        batch = facts.batch[rows]
        uneven = batch.max() - batch.min() > 64 and batch.max() > 1.5 * batch.min()
        if uneven or facts.matched[rows].max() <= 0.3 * facts.prompt:
            return facts.batch
        return best_match(facts, only(rows, len(view)))


class AibrixPrefix(Scored):
    """Least requests when they differ by more than 16; else the best match within two standard deviations."""

    name = "AIBrix prefix (16, 2σ)"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        batch = facts.batch[rows]
        if batch.max() - batch.min() > 16:
            return facts.batch
        return best_match(facts, only(rows, len(view)) & (facts.batch <= batch.mean() + 2 * batch.std()))


class Guard(Scored):
    """Best match among workers with at most 1.1 × the mean of requests, and 4."""

    name = "guard (1.1, 4)"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return best_match(facts, only(rows, len(view)) & (facts.batch <= 1.1 * facts.batch[rows].mean() + 4))
