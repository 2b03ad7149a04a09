"""What a request costs at each worker if that one computes all of it: the formulas of cost.py."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost.eviction import filled, fullness, recomputations, room_tokens
from pointsman.core.policies.cost.load import CostLoad, Floats, cost_load
from pointsman.core.policies.cost.placement import placement_ms
from pointsman.core.policies.cost.promises import others_misses_ms, own_misses_ms
from pointsman.core.policies.policy import highest
from pointsman.core.policies.weights import load_factors
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.prediction import DEFAULT_BUDGET_TOKENS


class Alone(NamedTuple):
    """One value a worker of the view. Plans that move KV are made of the same pieces."""

    load: CostLoad
    overhead_ms: Floats
    """The way there and back, and the wait for a seat."""
    computed_ms: Floats
    """What is new there of the prompt."""
    ttft_ms: Floats
    step_ms: Floats
    """A step of those who are there."""
    decode_step_ms: Floats
    """The same with the request."""
    beside_ms: Floats
    """Its answer for those who decode beside it."""
    waited_ms: Floats
    """What those lose who come to the worker until it is through with the prompt."""
    full: Floats
    """What the cache's room is worth there, of the full price."""
    again: float
    """Tokens that are computed again for each token of room."""
    coming_per_ms: float
    """Requests that come to a worker."""
    terms: dict[str, Floats]
    """By name; they add up to the score."""


def alone(request: Request, view: FleetView, times: TimeRows, rows: NDArray[np.intp], now_ms: float) -> Alone:
    """The terms, and what they were made of. `rows`: the eligible workers, at least one."""
    load = cost_load(request, view)
    computed = times.d * load.new
    whole = times.d * float(request.prompt_tokens)
    if np.count_nonzero(times.q):
        cached = request.prompt_tokens - load.new
        computed = computed + times.q * (request.prompt_tokens**2 - cached * cached)
        whole = whole + times.q * request.prompt_tokens**2
    output = view.outlook.output_tokens
    own_context = request.prompt_tokens + output / 2
    step_ms = times.a + times.b * load.there + times.c * load.context
    overhead_ms = times.overhead_ms if load.seat_steps is None else times.overhead_ms + load.seat_steps * step_ms
    ttft_ms = first_token_ms(load, times.d, overhead_ms, step_ms, computed)
    decode_step_ms = decoding_ms(request, load, times, own_context)
    beside = beside_tokens(request, view, load)
    coming_per_ms = view.outlook.arrivals_per_s / 1000 / len(rows)
    again = recomputations(view)
    caches = filled(view, rows)
    full = fullness(caches)
    beside_token_ms = times.b + times.c * own_context
    beside_ms = beside * beside_token_ms
    waited_ms = coming_per_ms * ttft_ms * ttft_ms
    completion_ms = ttft_ms + max(0.0, output - 1) * decode_step_ms
    terms = {
        "ttft_ms": ttft_ms,
        "completion_ms": completion_ms,
        "slowdown_ms": beside_ms + waited_ms,
        "eviction_ms": again * times.d * room_tokens(request, view, load) * full,
    }
    placement = placement_ms(request, view, load, caches, rows, output * beside_token_ms, (2 + again) * whole)
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
    factors = load_factors(view, rows)
    if factors is not None:
        counted = times_counted(request, load, factors, own_context)
        step = times.a + times.b * counted.there + times.c * counted.context
        ttft = first_token_ms(counted, times.d, overhead_ms, step, computed)
        completion = ttft + max(0.0, output - 1) * decoding_ms(request, counted, times, own_context)
        slowdown = beside_tokens(request, view, counted, factors) * beside_token_ms + coming_per_ms * ttft * ttft
        terms["weight_ms"] = ttft + completion + slowdown - (ttft_ms + completion_ms + terms["slowdown_ms"])
    return Alone(
        load,
        overhead_ms,
        computed,
        ttft_ms,
        step_ms,
        decode_step_ms,
        beside_ms,
        waited_ms,
        full,
        again,
        coming_per_ms,
        terms,
    )


def decoding_ms(request: Request, load: CostLoad, times: TimeRows, own_context: float) -> Floats:
    """A step in which the request decodes beside those who are there."""
    step_ms: Floats = (
        times.a
        + times.b * (load.there + float(request.sequences))
        + times.c * (load.context + request.sequences * own_context)
    )
    return step_ms


def beside_tokens(request: Request, view: FleetView, load: CostLoad, factors: Floats | None = None) -> Floats:
    """Tokens that others get while the request decodes. `factors`: how often those to come for them count."""
    to_come = view.table[Column.REMAINING_TOKENS]
    tokens: Floats = np.minimum(
        view.outlook.output_tokens * load.there, to_come if factors is None else to_come * factors
    )
    return tokens if request.sequences == 1 else tokens * request.sequences


def times_counted(request: Request, load: CostLoad, factors: Floats, own_context: float) -> CostLoad:
    """The load as often as it counts: sequences with the request, which is no part of them afterwards (weights.py)."""
    more = factors - 1
    there = load.there + more * (load.there + request.sequences)
    waiting = load.waiting * factors
    return load._replace(
        waiting=waiting,
        decoding=there - waiting,
        there=there,
        prefill=load.prefill * factors,
        context=load.context + more * (load.context + request.sequences * own_context),
    )


def total(terms: dict[str, Floats]) -> Floats:
    """Of all of them, in an array of its own."""
    first, *others = terms.values()
    summed = first + others[0]
    for term in others[1:]:
        summed += term
    return summed


def first_token_ms(load: CostLoad, d: Floats, overhead_ms: Floats, step: Floats, computed: Floats) -> Floats:
    """As prediction.ttft_ms, for many workers at once; those that wait are taken to decode beside it already."""
    busy = np.minimum(load.there, 1.0)
    if highest(load.decoding + load.prefill + load.new) <= DEFAULT_BUDGET_TOKENS:
        # Everything fits into one step everywhere. The same numbers as below, with half of the array operations.
        quick: Floats = overhead_ms + busy * (step + d * load.prefill) / 2 + step + computed
        return quick
    return stepped_ms(load, d, overhead_ms, step, computed)


def stepped_ms(load: CostLoad, d: Floats, overhead_ms: Floats, step: Floats, computed: Floats) -> Floats:
    """The same for prompts of any length; the arrays may have any shapes that go together."""
    busy = np.minimum(load.there, 1.0)
    room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
    in_step = np.minimum(load.prefill, room)
    ahead = load.prefill - in_step
    steps = np.maximum(1.0, np.ceil((ahead + load.new) / room))
    running = busy * (step + d * in_step) / 2
    ttft: Floats = overhead_ms + running + steps * step + d * ahead + computed
    return ttft


def joining_ms(load: CostLoad, d: Floats, overhead_ms: Floats, step: Floats, own_step: Floats) -> Floats:
    """Until a worker has decoded one token of a prompt that others computed, for many workers at once.

    It waits for half of the running step and takes part in the next one, in which prompts that wait there are computed.
    """
    busy = np.minimum(load.there, 1.0)
    if not np.count_nonzero(load.prefill):
        quick: Floats = overhead_ms + busy * step / 2 + own_step
        return quick
    room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
    in_step = np.minimum(load.prefill, room)
    in_next = np.minimum(load.prefill - in_step, room)
    joined: Floats = overhead_ms + busy * (step + d * in_step) / 2 + own_step + d * in_next
    return joined


def backlog_ms(load: CostLoad, d: Floats, step: Floats) -> Floats | None:
    """Until prompts that wait at a worker are computed but for those of two steps, for many workers at once.

    What others computed queues there behind them. None: nowhere do so many wait.
    """
    if not np.count_nonzero(load.prefill):
        return None
    room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
    rest = load.prefill - 2 * room
    if highest(rest) <= 0:
        return None
    rest = np.maximum(rest, 0.0)
    waited: Floats = d * rest + np.ceil(rest / room) * step
    return waited
