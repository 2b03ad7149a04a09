"""kv: the worker that has the least to compute before this request's first token, in prefill tokens.

    score = new + 0.5 · waiting + load price
    new     = prompt tokens − cached − 0.75 · offloaded
    waiting = prompt tokens sent there before that wait for their first token; half, because computing a prompt that
              waits there a second time elsewhere would also take room and time from others

`cached` is by the engine's own word (KV events) where that can be relied on, else by what was sent there; what was just
sent counts at once, so a burst of siblings lands together. `offloaded` tokens are in a tier below the GPU: to fetch one
costs about a quarter of computing it. The load price is that of load_price.py.
"""

from __future__ import annotations

import random

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.load_price import load_price
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.policies.weights import weighted_load

OFFLOADED_CREDIT = 0.75
WAITING_WEIGHT = 0.5
NOT_EXACT = "no KV events of the chosen worker to rely on: its cached tokens are approximate"


class Kv:
    """Score: prefill tokens. The terms `new_tokens`, `waiting_tokens` and `load_price_tokens` add up to it."""

    name = "kv"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least score; a tie goes to anybody."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        offloaded = view.column(Column.OFFLOADED_TOKENS)
        new = request.prompt_tokens - view.column(Column.CACHED_TOKENS)
        if offloaded.any():
            new = new - OFFLOADED_CREDIT * offloaded
        waiting = WAITING_WEIGHT * view.column(Column.PREFILL_TOKENS)
        price = load_price(weighted_load(view, rows), rows, request.prompt_tokens)
        scores = new + waiting + price
        row = least_row(scores, rows, rng)
        terms = {
            "new_tokens": new,
            "waiting_tokens": waiting,
            "load_price_tokens": price,
            "exact": view.column(Column.EXACT),
        }
        note = None if view.table[Column.EXACT, row] else NOT_EXACT
        return decision(self.name, request, view, now_ms, row, scores, "tokens", terms, note)
