"""least_loaded: fewest requests in flight, our own (exact) and others' (from the engine's metrics), by weight."""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision, Values
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.policies.weights import weighted_load


class LeastLoaded:
    """Score: requests in flight."""

    name = "least_loaded"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least loaded worker, ties at random."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        load = weighted_load(view, rows)
        row = least_row(load, rows, rng)
        terms: dict[str, Values] = {"running": view.column(Column.RUNNING), "foreign": view.column(Column.FOREIGN)}
        if load.dtype == np.float64:
            terms["weight"] = load - view.load
        return decision(self.name, request, view, now_ms, row, load, "requests", terms)
