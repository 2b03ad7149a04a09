"""random: any eligible worker, with equal chance, or with chances by weight."""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import Timing, decision, rejection
from pointsman.core.policies.weights import load_factors


class RandomChoice:
    """All eligible workers have score 0."""

    name = "random"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """Draw one."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        factors = load_factors(view, rows)
        if factors is None:
            row = int(rows[rng.randrange(len(rows))])
        else:
            row = int(rng.choices(rows.tolist(), (1 / factors[rows]).tolist())[0])
        return decision(self.name, request, view, now_ms, row, np.zeros(len(view)), "none")
