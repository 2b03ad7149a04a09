"""round_robin: in turn.

The turn is kept by the ledger: whoever got its last request longest ago is next. Unlike a cursor, this stays even when
workers come, go or are excluded for a while.
"""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.policy import Timing, decision, rejection


class RoundRobin:
    """Score: sequence number of the last request sent there."""

    name = "round_robin"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The eligible worker whose last request is the oldest; among new ones the first listed."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        last = view.column(Column.LAST_DISPATCH)
        row = int(rows[last[rows].argmin()])
        return decision(self.name, request, view, now_ms, row, last, "rank")
