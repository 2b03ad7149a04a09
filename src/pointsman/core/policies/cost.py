"""cost: the worker where a request costs the least time, its own and everybody else's.

    score = ttft + decode + slowdown + eviction     (+ slo + adapter + weight + ramp, where they play a part)

All terms are milliseconds of the time model (`step = a + b·sequences + c·context + d·prefill tokens + q·squares`, with
the coefficients learned for each worker) and add up to the score. N sequences are there, which hold C tokens of
context; the request has P prompt tokens of which n are new there, and an answer of O tokens is expected.

    ttft      overhead + half of the running step + steps · (a + b·N + c·C) + d·(tokens that wait there + n)
    decode    O · (a + b·(N + 1) + c·(C + P + O/2))
    slowdown  N · d · n                      each that decodes there waits once for the prompt
              + min(O·N, R) · (b + c·(P + O/2))   and decodes beside it, until one of the two ends; R tokens are to come
    eviction  see cost_eviction.py

Nothing in it is tuned: what is not in the view follows from the formulas above.
"""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost_eviction import eviction_ms
from pointsman.core.policies.cost_load import CostLoad, Floats, cost_load
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.timing.fleet_times import TimeRows, fleet_times
from pointsman.core.timing.prediction import DEFAULT_BUDGET_TOKENS

NOTHING_KNOWN = "no step times are known of any worker: the usual proportions of a small model were used"


class Cost:
    """Score: milliseconds. Its terms add up to it."""

    name = "cost"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least cost; a tie goes to anybody."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        times = fleet_times(timing).rows(view.workers)
        terms = cost_terms(request, view, times)
        scores = sum(terms.values(), np.zeros(len(view)))
        row = least_row(scores, rows, rng)
        note = None if times.known.any() else NOTHING_KNOWN
        return decision(self.name, request, view, now_ms, row, scores, "ms", terms, note)


def cost_terms(request: Request, view: FleetView, times: TimeRows) -> dict[str, Floats]:
    """The terms by name, one value a worker."""
    load = cost_load(request, view)
    computed = times.d * load.new
    if times.q.any():
        cached = request.prompt_tokens - load.new
        computed = computed + times.q * (request.prompt_tokens**2 - cached * cached)
    output = view.outlook.output_tokens
    own_context = request.prompt_tokens + output / 2
    terms = {
        "ttft_ms": _ttft_ms(load, times, computed),
        "decode_ms": max(0.0, output - 1)
        * (
            times.a
            + times.b * (load.there + request.sequences)
            + times.c * (load.context + request.sequences * own_context)
        ),
    }
    beside = np.minimum(output * load.there, load.table[Column.REMAINING_TOKENS]) * request.sequences
    terms["slowdown_ms"] = load.there * computed + beside * (times.b + times.c * own_context)
    eviction = eviction_ms(request, view, load, times)
    if eviction is not None:
        terms["eviction_ms"] = eviction
    return terms


def _ttft_ms(load: CostLoad, times: TimeRows, computed: Floats) -> Floats:
    """As prediction.ttft_ms, for all workers at once; those that wait are taken to decode beside it already."""
    prefill = load.table[Column.PREFILL_TOKENS]
    step = times.a + times.b * load.there + times.c * load.context
    room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
    in_step = np.minimum(prefill, room)
    ahead = prefill - in_step
    steps = np.maximum(1.0, np.ceil((ahead + load.new) / room))
    running = (load.there > 0) * (step + times.d * in_step) / 2
    ttft: Floats = times.overhead_ms + running + steps * step + times.d * ahead + computed
    return ttft
