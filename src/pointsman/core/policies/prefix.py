"""prefix: the worker that probably holds most of the prompt, unless it is clearly busier than the others.

What a worker holds is approximate: what was routed to it, bounded by its KV capacity and a time to live. The guard is
`load <= 1.1 · mean load + 4`: without one, a popular prefix strands the capacity of all workers but one; with it, a hot
prefix spreads to as many workers as its load needs, and every one of them then holds it.
"""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.policy import Timing, decision, least_row, rejection

LOAD_FACTOR = 1.1
LOAD_SLACK_REQUESTS = 4


class Prefix:
    """Score: prompt tokens left to compute; beyond the guard twice the whole prompt.

    The term `over_guard` is 1 for workers beyond the guard. Among equal scores the least loaded wins, then chance.
    """

    name = "prefix"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """Best match within the guard, ties to the least loaded."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        load = view.load
        limit = LOAD_FACTOR * int(np.add.reduce(load[rows])) / len(rows) + LOAD_SLACK_REQUESTS
        cached = view.column(Column.CACHED_TOKENS)
        over = load > limit
        scores = np.where(over, 2 * request.prompt_tokens, request.prompt_tokens - cached)
        chosen = scores[rows]
        best = rows[chosen == np.minimum.reduce(chosen)]
        row = int(best[0]) if len(best) == 1 else least_row(load, best, rng)
        terms = {"uncached_tokens": request.prompt_tokens - cached, "load": load, "over_guard": over}
        return decision(self.name, request, view, now_ms, row, scores, "tokens", terms)
