"""prefix: the worker that probably holds most of the prompt, unless it is clearly busier than the others.

    score = prompt tokens − cached + load price

What a worker holds is approximate: what was routed to it, bounded by its KV capacity and a time to live. The load price
is that of load_price.py.
"""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.load_price import load_price
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.policies.weights import weighted_load


class Prefix:
    """Score: prefill tokens. The terms `uncached_tokens` and `load_price_tokens` add up to it."""

    name = "prefix"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least score; a tie goes to anybody."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        uncached = request.prompt_tokens - view.column(Column.CACHED_TOKENS)
        price = load_price(weighted_load(view, rows), rows, request.prompt_tokens)
        scores = uncached + price
        row = least_row(scores, rows, rng)
        terms = {"uncached_tokens": uncached, "load_price_tokens": price}
        return decision(self.name, request, view, now_ms, row, scores, "tokens", terms)
