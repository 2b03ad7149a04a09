"""least_loaded: fewest requests in flight, our own (exact) and others' (from the engine's metrics)."""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.policy import Timing, decision, least_row, rejection


class LeastLoaded:
    """Score: requests in flight."""

    name = "least_loaded"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least loaded worker, ties at random."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        load = view.load
        row = least_row(load, rows, rng)
        terms = {"running": view.column(Column.RUNNING), "foreign": view.column(Column.FOREIGN)}
        return decision(self.name, request, view, now_ms, row, load, "requests", terms)
