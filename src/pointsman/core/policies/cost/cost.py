"""cost: the worker where a request costs the least time, its own and everybody else's.

    score = ttft + completion + slowdown + eviction + placement  (+ slo + adapter + weight, where they play a part)

All terms are milliseconds of the time model (`step = a + b·sequences + c·context + d·prefill tokens + q·squares`, with
the coefficients learned for each worker) and add up to the score. N sequences are there, which hold C tokens of
context; the request has P prompt tokens of which n are new there, and an answer of O tokens is expected.

    ttft        overhead + wait for a seat + half of the running step + steps · (a + b·N + c·C)
                + d·(tokens that wait there + n)
    completion  ttft + O · (a + b·(N + 1) + c·(C + P + O/2))
    slowdown    min(O·N, R) · (b + c·(P + O/2))   what those there decode beside it; R tokens are to come for them
                + A · ttft²                       A requests a ms come to a worker, and wait until its prompt is through
    eviction    L · d · (n + O) · fullness        L tokens are computed again for each token of room: eviction.py
    placement   what the requests cost that new content will draw there: placement.py
    slo         what is wasted by promises that will be broken: promises.py
    adapter     the time to load the request's LoRA adapter, where it is not there
    weight      ttft + completion + slowdown with loads counted as often as weights say (weights.py), less without

The wait for a seat: where a worker computes at most S sequences at once and as many are there, of which each has r
tokens to come, somebody gets up every r/S steps, and it waits for as many as are ahead of it. N and C are then those
of the S who sit.

The wait for the first token counts twice, by itself and as the beginning of the answer: nothing is there to see in it.

A·ttft²: half a ttft each for A·ttft requests, twice as many as on the average, since a worker that gets a prompt is
likelier to get the next ones with its beginning.

What those who decode wait for while the prompt is computed (N·d·n) is not in it: it grows with the load of the worker
that should be relieved, so it would leave a busy one with all requests whose prompts it holds.

Where workers can pass KV on, plans that do so are scored beside it, in the same milliseconds: plans.py.
"""

from __future__ import annotations

import random

import numpy as np

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.cost.alone import alone, total
from pointsman.core.policies.cost.plans import with_plans
from pointsman.core.policies.pairs import moves
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.timing.fleet_times import fleet_times

NOTHING_KNOWN = "no step times are known of any worker: the usual proportions of a small model were used"


class Cost:
    """Score: milliseconds. Its terms add up to it."""

    name = "cost"
    makes_plans = True

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        """The least cost; a tie goes to anybody."""
        rows = view.eligible_rows()
        if not len(rows):
            return rejection(self.name, request, view, now_ms)
        fleet = fleet_times(timing)
        times = fleet.rows(view.workers)
        whole = alone(request, view, times, rows, now_ms)
        scores = total(whole.terms)
        row = least_row(scores, rows, rng)
        note = None if np.count_nonzero(times.known) else NOTHING_KNOWN
        made = decision(self.name, request, view, now_ms, row, scores, "ms", whole.terms, note)
        return with_plans(made, request, fleet, whole, row, rng) if moves(view) else made
