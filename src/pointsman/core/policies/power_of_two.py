"""power_of_two: of two workers drawn at random the less loaded one.

Nearly as even as least_loaded, and safe when several routers see the same stale loads: they don't all run to one worker
(Mitzenmacher, "The power of two choices in randomized load balancing", 2001).
"""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.policy import Timing, decision, rejection
from pointsman.core.policies.weights import weighted_load


class PowerOfTwo:
    """Score: requests in flight. Workers that were not drawn keep theirs; the term `drawn` is 1 for the two."""

    name = "power_of_two"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """Draw two, take the less loaded; a tie goes to the first drawn."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        load = weighted_load(view, rows)
        drawn = rng.sample(rows.tolist(), min(2, len(rows)))
        row = min(drawn, key=lambda r: float(load[r]))
        chosen = np.zeros(len(view))
        chosen[drawn] = 1
        terms = {
            "running": view.column(Column.RUNNING),
            "foreign": view.column(Column.FOREIGN),
            "drawn": chosen,
        }
        return decision(self.name, request, view, now_ms, row, load, "requests", terms)
