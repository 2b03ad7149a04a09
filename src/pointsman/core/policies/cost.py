"""cost: the worker where a request costs the least time, its own and everybody else's.

    score = ttft + completion + slowdown + eviction + placement  (+ slo + adapter + weight, where they play a part)

All terms are milliseconds of the time model (`step = a + b·sequences + c·context + d·prefill tokens + q·squares`, with
the coefficients learned for each worker) and add up to the score. N sequences are there, which hold C tokens of
context; the request has P prompt tokens of which n are new there, and an answer of O tokens is expected.

    ttft        overhead + half of the running step + steps · (a + b·N + c·C) + d·(tokens that wait there + n)
    completion  ttft + O · (a + b·(N + 1) + c·(C + P + O/2))
    slowdown    min(O·N, R) · (b + c·(P + O/2))   what those there decode beside it; R tokens are to come for them
                + A · ttft²                       A requests a ms come to a worker, and wait until its prompt is through
    eviction    L · d · (n + O) · fullness        L tokens are computed again for each token of room: cost_eviction.py
    placement   what the requests cost that new content will draw there: cost_placement.py
    slo         what is wasted by promises that will be broken: cost_promises.py
    adapter     the time to load the request's LoRA adapter, where it is not there
    weight      all that by (1 / weight − 1)

The wait for the first token counts twice, by itself and as the beginning of the answer: nothing is there to see in it.

A·ttft²: half a ttft each for A·ttft requests, twice as many as on the average, since a worker that gets a prompt is
likelier to get the next ones with its beginning.

What those who decode wait for while the prompt is computed (N·d·n) is not in it: it grows with the load of the worker
that should be relieved, so it would leave a busy one with all requests whose prompts it holds.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost_eviction import filled, fullness, recomputations, room_tokens
from pointsman.core.policies.cost_load import CostLoad, Floats, cost_load
from pointsman.core.policies.cost_placement import placement_ms
from pointsman.core.policies.cost_promises import others_misses_ms, own_misses_ms
from pointsman.core.policies.policy import Timing, decision, least_row, rejection
from pointsman.core.timing.fleet_times import TimeRows, fleet_times
from pointsman.core.timing.prediction import DEFAULT_BUDGET_TOKENS

ORDINARY_WEIGHT = 1000
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
        terms = cost_terms(request, view, times, rows, now_ms)
        scores = _sum(terms)
        row = least_row(scores, rows, rng)
        note = None if np.count_nonzero(times.known) else NOTHING_KNOWN
        return decision(self.name, request, view, now_ms, row, scores, "ms", terms, note)


def cost_terms(
    request: Request, view: FleetView, times: TimeRows, rows: NDArray[np.intp], now_ms: float
) -> dict[str, Floats]:
    """The terms by name, one value a worker. `rows`: the eligible workers, at least one."""
    load = cost_load(request, view)
    computed = times.d * load.new
    whole = times.d * request.prompt_tokens
    if np.count_nonzero(times.q):
        cached = request.prompt_tokens - load.new
        computed = computed + times.q * (request.prompt_tokens**2 - cached * cached)
        whole = whole + times.q * request.prompt_tokens**2
    output = view.outlook.output_tokens
    own_context = request.prompt_tokens + output / 2
    step_ms = times.a + times.b * load.there + times.c * load.context
    ttft_ms = _ttft_ms(load, times, step_ms, computed)
    decode_step_ms = (
        times.a
        + times.b * (load.there + request.sequences)
        + times.c * (load.context + request.sequences * own_context)
    )
    beside = np.minimum(output * load.there, view.table[Column.REMAINING_TOKENS]) * request.sequences
    coming_per_ms = view.outlook.arrivals_per_s / 1000 / len(rows)
    again = recomputations(view)
    caches = filled(view, rows)
    beside_ms = times.b + times.c * own_context
    completion_ms = ttft_ms + max(0.0, output - 1) * decode_step_ms
    terms = {
        "ttft_ms": ttft_ms,
        "completion_ms": completion_ms,
        "slowdown_ms": beside * beside_ms + coming_per_ms * ttft_ms * ttft_ms,
        "eviction_ms": again * times.d * room_tokens(request, view, load) * fullness(caches),
    }
    placement = placement_ms(request, view, load, caches, rows, output * beside_ms, (2 + again) * whole)
    if placement is not None:
        terms["placement_ms"] = placement
    misses = (
        own_misses_ms(request, ttft_ms, completion_ms, decode_step_ms, times, now_ms),
        others_misses_ms(view, computed, output, step_ms, decode_step_ms, times),
    )
    for price in misses:
        if price is not None:
            terms["slo_ms"] = terms.get("slo_ms", 0.0) + price
    missing = view.table[Column.ADAPTER_MISSING]
    if np.count_nonzero(missing):
        terms["adapter_ms"] = view.outlook.adapter_load_ms * missing
    weight = view.table[Column.WEIGHT_PERMILLE]
    if np.count_nonzero(weight != ORDINARY_WEIGHT):
        # Rows of views that were made by hand may have no weight.
        rest = ORDINARY_WEIGHT / np.where(weight > 0, weight, ORDINARY_WEIGHT) - 1
        terms["weight_ms"] = rest * _sum(terms)
    return terms


def _sum(terms: dict[str, Floats]) -> Floats:
    """Of all of them, in an array of its own."""
    first, *others = terms.values()
    total = first + others[0]
    for term in others[1:]:
        total += term
    return total


def _ttft_ms(load: CostLoad, times: TimeRows, step: Floats, computed: Floats) -> Floats:
    """As prediction.ttft_ms, for all workers at once; those that wait are taken to decode beside it already."""
    busy = np.minimum(load.there, 1.0)
    if float(np.maximum.reduce(load.decoding + load.prefill + load.new)) <= DEFAULT_BUDGET_TOKENS:
        # Everything fits into one step everywhere. The same numbers as below, with half of the array operations.
        quick: Floats = times.overhead_ms + busy * (step + times.d * load.prefill) / 2 + step + computed
        return quick
    room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
    in_step = np.minimum(load.prefill, room)
    ahead = load.prefill - in_step
    steps = np.maximum(1.0, np.ceil((ahead + load.new) / room))
    running = busy * (step + times.d * in_step) / 2
    ttft: Floats = times.overhead_ms + running + steps * step + times.d * ahead + computed
    return ttft
