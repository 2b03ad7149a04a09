"""The price of plans that move KV, in the terms of the cost policy (cost.py) and in the same milliseconds.

The worker C computes the prompt and the worker A answers. Prefill and decode apart: KV goes from C to A. A pull: C is
A, and KV of the prompt's beginning comes from a third one. T is the time of the transfer: `floor + bytes · (1 + others
under way) / bandwidth` of the link, the bytes being those of the tokens that who gets them does not hold yet.

    ttft        until C has computed the prompt, and until A has taken part in a step of its own
    transfer    T; together with `ttft` the predicted time to the first token
    completion  ttft + T + what A needs for the answer
    slowdown    those who decode at A, as ever; those who come to C until it is through
    eviction    room at A; and at C, which keeps a copy. What a worker for prefill only loses was copied to another one
                by plans like this, so there the dearer of both counts, else their sum
    placement   as at A; with a copy at a C that decodes, too, the mean of both: who asks again goes to either
    relief      what those who decode at C wait for while it computes, less the same at the best worker alone: the gain
                of prefill and decode apart. It moves the score by at most `RELIEF_SHARE` of the wait for the first
                token there: nobody's first token is to come much later for the sake of others
    risk        what the times are expected to exceed their medians by, beyond that of the best worker alone
    slo, adapter, weight: as ever, at both

Risk: actual over predicted times are taken to be lognormal with the P90 over P50 that was seen of the link and of C;
their mean is exp(σ²/2) medians, σ = ln(P90/P50)/1.2816. It counts twice, as the wait for the first token does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import STAGE_PREFILL, Column, FleetView
from pointsman.core.policies.cost_alone import ORDINARY_WEIGHT, Alone, heaviness, total
from pointsman.core.policies.cost_load import Floats
from pointsman.core.policies.cost_promises import misses_at_ms, own_misses_ms
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.link_rows import LinkRows

RELIEF_SHARE = 0.1
_Z90 = 1.2816
"""Of a normal distribution: how many standard deviations its 90th percentile is above its median."""
_MOST_SPREAD = 4.0
"""P90 over P50 beyond which it says that nothing is known, not that the mean is that far off."""

Rows = NDArray[np.intp]


class Scene(NamedTuple):
    """All that plans of one decision are priced by."""

    request: Request
    view: FleetView
    times: TimeRows
    links: LinkRows
    now_ms: float
    alone: Alone
    scores: Floats
    """Of the workers alone."""
    best: int
    """Row of the best of them."""


class Moves(NamedTuple):
    """Plans, one entry each."""

    computes: Rows
    answers: Rows
    gives: Rows
    """Whose KV is moved: `computes`, or the source of a pull."""
    apart: NDArray[np.bool_]
    first_ms: Floats
    """Until the prompt is computed, but for the transfer."""
    joined_ms: Floats
    """From then on until the first token; 0 for a pull."""
    new: Floats
    """Prompt tokens that are computed."""
    computed_ms: Floats
    """What these take."""
    moved_tokens: NDArray[np.int64]
    size_bytes: Floats


class _Ratios(NamedTuple):
    ttft_p50: Floats
    ttft_p90: Floats
    step_p50: Floats
    step_p90: Floats


def move_terms(scene: Scene, moves: Moves) -> dict[str, Floats]:
    """By name, one value a plan; they add up to the score."""
    view, times, alone = scene.view, scene.times, scene.alone
    computes, answers, apart = moves.computes, moves.answers, moves.apart
    table = view.table
    link = scene.links.of(table[Column.NODE, moves.gives], table[Column.NODE, answers])
    under_way = np.maximum(table[Column.TRANSFERS_OUT, moves.gives], table[Column.TRANSFERS_IN, answers])
    transfer = scene.links.ms(link, moves.size_bytes, under_way)
    output = view.outlook.output_tokens
    decode_step = alone.decode_step_ms[answers]
    ttft = moves.first_ms + moves.joined_ms
    wait = ttft + transfer
    completion = wait + max(0.0, output - 1) * decode_step
    held = moves.first_ms + np.where(apart, 0.0, transfer)
    terms = {
        "ttft_ms": ttft,
        "transfer_ms": transfer,
        "completion_ms": completion,
        "slowdown_ms": alone.beside_ms[answers] + alone.coming_per_ms * held * held,
    }
    only_prefill = table[Column.STAGES, computes] == STAGE_PREFILL
    room = alone.terms["eviction_ms"][answers]
    copy = np.where(apart, alone.again * times.d[computes] * moves.new * alone.full[computes], 0.0)
    terms["eviction_ms"] = np.where(only_prefill, np.maximum(room, copy), room + copy)
    placement = alone.terms.get("placement_ms")
    if placement is not None:
        there = placement[answers]
        terms["placement_ms"] = np.where(only_prefill, there, (there + placement[computes]) / 2)
    terms["relief_ms"] = _relief_ms(scene, moves)
    spread = scene.links.spread(link)
    terms["risk_ms"] = _risk_ms(scene, moves, transfer, spread)
    slo = _slo_ms(scene, moves, wait, completion, _ratios(scene, moves, ttft, transfer, spread))
    if slo is not None:
        terms["slo_ms"] = slo
    missing = table[Column.ADAPTER_MISSING]
    if np.count_nonzero(missing):
        terms["adapter_ms"] = view.outlook.adapter_load_ms * (missing[answers] + apart * missing[computes])
    weight = table[Column.WEIGHT_PERMILLE]
    if np.count_nonzero(weight != ORDINARY_WEIGHT):
        heavy = heaviness(weight)
        terms["weight_ms"] = (heavy[answers] + heavy[computes]) / 2 * total(terms)
    return terms


def _relief_ms(scene: Scene, moves: Moves) -> Floats:
    alone, best = scene.alone, scene.best
    disturbed = alone.load.decoding[moves.computes] * moves.computed_ms
    otherwise = float(alone.load.decoding[best] * alone.computed_ms[best])
    most = 2 * RELIEF_SHARE * float(alone.ttft_ms[best])
    relief: Floats = np.clip(disturbed - otherwise, -most, most)
    return relief


def _risk_ms(scene: Scene, moves: Moves, transfer_ms: Floats, spread: Floats) -> Floats:
    times, best = scene.times, scene.best
    p50, p90 = times.ttft_p50, times.ttft_p90
    more = moves.first_ms * _excess(p90[moves.computes] / p50[moves.computes]) + transfer_ms * _excess(spread)
    otherwise = float(scene.alone.ttft_ms[best]) * float(_excess(p90[best : best + 1] / p50[best : best + 1])[0])
    risk: Floats = 2 * np.maximum(more - otherwise, 0.0)
    return risk


def _excess(spread: Floats) -> Floats:
    """By how much the mean of a lognormal exceeds its median, as a share of it."""
    sigma = np.log(np.clip(spread, 1.0, _MOST_SPREAD)) / _Z90
    excess: Floats = np.expm1(sigma * sigma / 2)
    return excess


def _ratios(scene: Scene, moves: Moves, ttft_ms: Floats, transfer_ms: Floats, spread: Floats) -> _Ratios:
    times = scene.times
    wait = np.maximum(ttft_ms + transfer_ms, 1e-9)
    return _Ratios(
        (ttft_ms * times.ttft_p50[moves.computes] + transfer_ms) / wait,
        (ttft_ms * times.ttft_p90[moves.computes] + transfer_ms * spread) / wait,
        times.step_p50[moves.answers],
        times.step_p90[moves.answers],
    )


def _slo_ms(scene: Scene, moves: Moves, wait_ms: Floats, completion_ms: Floats, ratios: _Ratios) -> Floats | None:
    view, alone, times = scene.view, scene.alone, scene.times
    own = own_misses_ms(
        scene.request, wait_ms, completion_ms, alone.decode_step_ms[moves.answers], ratios, scene.now_ms
    )
    if not np.count_nonzero(view.table[Column.SLO_DECODING]):
        return own
    output = view.outlook.output_tokens
    answers, computes, apart = moves.answers, moves.computes, moves.apart
    before, after = alone.step_ms[answers], alone.decode_step_ms[answers]
    computed_there = np.where(apart, 0.0, moves.computed_ms)
    price = misses_at_ms(answers, view, computed_there, output, before, after, ratios)
    step = alone.step_ms[computes]
    there = _Ratios(ratios.ttft_p50, ratios.ttft_p90, times.step_p50[computes], times.step_p90[computes])
    price = price + apart * misses_at_ms(computes, view, moves.computed_ms, output, step, step, there)
    return price if own is None else own + price
