"""The price of plans that move KV, in the terms of the cost policy (cost.py) and in the same milliseconds.

The worker C computes the prompt and the worker A answers. Prefill and decode apart: KV goes from C to A. A pull: C is
A, and KV of the prompt's beginning comes from a third one. T is the time of the transfer. Alone it takes `floor + M`,
`M = bytes / bandwidth` of the link, the bytes being those of the tokens that who gets them does not hold yet.
A pull begins at once and shares the link with those under way: `floor + M · (1 + under way)`. From C to A something
moves only when the prompt is computed, and by then some of those are through that go first, as far as the time was
enough for transfers like this one: `floor + M + max(0, M · ahead − time to compute it)`. Ahead are those under way from
C and, if it computes prompts only, the prompts that wait there; or those under way to A or, if no prompts of its own
wait there, all that wait there for a first token; whichever are more.

    ttft        until C has computed the prompt, until prompts that wait at A are computed, behind which it queues, and
                until A has taken part in a step of its own
    transfer    T; together with `ttft` the predicted time to the first token
    completion  ttft + T + what A needs for the answer
    slowdown    those who decode at A, as ever; those who come to C until it is through
    eviction    room at A; and at C, which keeps a copy. What a worker for prompts only loses was copied to another one
                by plans like this, so there the dearer of both counts, else their sum
    placement   as at A; with a copy at a C that decodes, too, the mean of both: who asks again goes to either
    relief      what those who decode at C wait for while it computes, less the same at the best worker alone: the gain
                of prefill and decode apart. It moves the score by at most 2·ttft there, for each request that comes to
                the worker meanwhile (A·ttft of them): see below
    risk        what the times are expected to exceed their medians by, beyond that of the best worker alone
    slo, adapter: as ever, at both
    weight      the mean of both workers', as if each computed all of it

Relief in full, N·d·n, would have first tokens wait for slow links and in long queues for the sake of others whenever
many decode. It pays where prompts come faster than a worker is through with them, as then it is those with prompts who
wait for each other; where none comes meanwhile, `RELIEF_SHARE` of the wait is what may be spent on it.

Risk: actual over predicted times are taken to be lognormal with the P90 over P50 that was seen of the link and of C
(core/timing/spread.py). It counts twice, as the wait for the first token does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import STAGE_PREFILL, Column, FleetView
from pointsman.core.policies.cost.alone import Alone, backlog_ms, joining_ms, stepped_ms
from pointsman.core.policies.cost.load import CostLoad, Floats
from pointsman.core.policies.cost.promises import misses_at_ms, own_misses_ms
from pointsman.core.policies.pairs import Mask, Passing, incoming
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.link_rows import LinkRows
from pointsman.core.timing.spread import mean_excess

RELIEF_SHARE = 0.05
"""Of the wait for the first token at the best worker: what is spent for others even where nobody comes meanwhile."""

Rows = NDArray[np.intp]


class Scene(NamedTuple):
    """All that the plans of one decision are priced by."""

    request: Request
    view: FleetView
    times: TimeRows
    excess: Floats
    """Of a worker's times to the first token: mean over median, less one."""
    passing: Passing
    now_ms: float
    alone: Alone
    scores: Floats
    """Of the workers alone."""
    best: int
    """Row of the best of them."""
    fits: Mask | None
    """Where prompt and answer have room; None: everywhere."""
    ahead: tuple[Floats, Floats] | None
    """Transfers that go before one from a worker, and before one to it; None: none anywhere."""
    disturbed_ms: float
    """What those who decode at the best worker wait for while it computes the prompt."""
    most_relief_ms: float
    """By which `relief` may move a score."""
    usual_risk_ms: float
    """What the best worker's time to the first token is expected to exceed its median by."""


class Moves(NamedTuple):
    """Plans, one entry each."""

    computes: Rows
    answers: Rows
    gives: Rows
    """Whose KV is moved: `computes`, or the source of a pull."""
    apart: NDArray[np.bool_]
    """Else a pull."""
    moved_tokens: NDArray[np.int64]


class _Ratios(NamedTuple):
    ttft_p50: Floats
    ttft_p90: Floats
    step_p50: Floats
    step_p90: Floats


class _Computed(NamedTuple):
    """What a plan has computed, one entry a plan."""

    new: Floats
    computed_ms: Floats
    first_ms: Floats
    joined_ms: Floats


def most_relief_ms(ttft_ms: float, coming_per_ms: float) -> float:
    """By which `relief` may move a score. The arguments: of the best worker alone, and for each worker."""
    return 2 * ttft_ms * max(RELIEF_SHARE, coming_per_ms * ttft_ms)


def size_bytes(scene: Scene, moves: Moves) -> Floats:
    """That would be moved."""
    sizes: Floats = moves.moved_tokens * scene.passing.token_bytes[moves.gives]
    return sizes


def move_terms(scene: Scene, links: LinkRows, moves: Moves) -> dict[str, Floats]:
    """By name, one value a plan; they add up to the score."""
    view, times, alone = scene.view, scene.times, scene.alone
    computes, answers, apart = moves.computes, moves.answers, moves.apart
    table = view.table
    done = _computed(scene, moves)
    link = links.of(table[Column.NODE, moves.gives], table[Column.NODE, answers])
    transfer = _transfer_ms(scene, links, moves, done.first_ms, link)
    ttft = done.first_ms + done.joined_ms
    wait = ttft + transfer
    completion = wait + max(0.0, view.outlook.output_tokens - 1) * alone.decode_step_ms[answers]
    held = done.first_ms + np.where(apart, 0.0, transfer)
    ahead = np.where(apart, others_ms(alone)[answers], 0.0)
    terms = {
        "ttft_ms": ttft,
        "transfer_ms": transfer,
        "completion_ms": completion,
        "slowdown_ms": alone.beside_ms[answers] + alone.coming_per_ms * held * held + ahead,
    }
    only_prompts = table[Column.STAGES, computes] == STAGE_PREFILL
    room = alone.terms["eviction_ms"][answers]
    copy = np.where(apart, alone.again * times.d[computes] * done.new * alone.full[computes], 0.0)
    terms["eviction_ms"] = np.where(only_prompts, np.maximum(room, copy), room + copy)
    placement = alone.terms.get("placement_ms")
    if placement is not None:
        there = placement[answers]
        terms["placement_ms"] = np.where(only_prompts, there, (there + placement[computes]) / 2)
    most = scene.most_relief_ms
    disturbed = alone.load.decoding[computes] * done.computed_ms - scene.disturbed_ms
    terms["relief_ms"] = np.clip(disturbed, -most, most)
    spread = links.spread(link)
    risk = done.first_ms * scene.excess[computes] + transfer * mean_excess(spread)
    terms["risk_ms"] = 2 * np.maximum(risk - scene.usual_risk_ms, 0.0)
    slo = _slo_ms(scene, moves, done, wait, completion, _ratios(scene, moves, ttft, transfer, spread))
    if slo is not None:
        terms["slo_ms"] = slo
    missing = table[Column.ADAPTER_MISSING]
    if np.count_nonzero(missing):
        terms["adapter_ms"] = view.outlook.adapter_load_ms * (missing[answers] + apart * missing[computes])
    weight = alone.terms.get("weight_ms")
    if weight is not None:
        terms["weight_ms"] = (weight[answers] + weight[computes]) / 2
    return terms


def others_ms(alone: Alone) -> Floats:
    """What those lose who come to a worker while it is at the prompts of others, whoever computes this one."""
    ahead = np.maximum(alone.ttft_ms - alone.computed_ms, 0.0)
    lost: Floats = alone.coming_per_ms * ahead * ahead
    return lost


def transfers_ahead(view: FleetView, only_prompts: Floats) -> tuple[Floats, Floats] | None:
    """Transfers that go before one from a worker, and before one to it; None: none anywhere."""
    table = view.table
    waiting, going = table[Column.WAITING_FIRST], table[Column.TRANSFERS_OUT]
    if not (np.count_nonzero(waiting) or np.count_nonzero(going) or np.count_nonzero(table[Column.TRANSFERS_IN])):
        return None
    return going + waiting * only_prompts, incoming(view)


def _transfer_ms(scene: Scene, links: LinkRows, moves: Moves, first_ms: Floats, link: NDArray[np.int32]) -> Floats:
    table = scene.view.table
    floor = links.floor_ms(link)
    moving = links.ms(link, size_bytes(scene, moves), np.zeros(len(link), dtype=np.int64)) - floor
    under_way = np.maximum(table[Column.TRANSFERS_OUT, moves.gives], table[Column.TRANSFERS_IN, moves.answers])
    if scene.ahead is None:
        ahead: Floats = np.zeros(len(link))
    else:
        ahead = np.maximum(scene.ahead[0][moves.gives], scene.ahead[1][moves.answers])
    others = np.where(moves.apart, np.maximum(moving * ahead - first_ms, 0.0), moving * under_way)
    took: Floats = floor + moving + others
    return took


def has_rare_terms(alone: Alone) -> bool:
    """Whether promises, adapters or weights play a part."""
    return not alone.terms.keys().isdisjoint(("slo_ms", "adapter_ms", "weight_ms"))


def _computed(scene: Scene, moves: Moves) -> _Computed:
    alone, times, rows = scene.alone, scene.times, moves.computes
    load, apart = alone.load, moves.apart
    joining = joining_ms(load, times.d, times.overhead_ms, alone.step_ms, alone.decode_step_ms)
    held = scene.view.table[Column.CACHED_TOKENS, moves.gives]
    new = np.where(apart, load.new[rows], np.minimum(load.new[rows], scene.request.prompt_tokens - held))
    computed = prompt_ms(scene, times.d[rows], times.q[rows], new)
    there = CostLoad(new, load.waiting[rows], load.decoding[rows], load.there[rows], load.prefill[rows], new)
    first = stepped_ms(there, times.d[rows], times.overhead_ms[rows], alone.step_ms[rows], computed)
    joined = joining[moves.answers]
    backlog = backlog_ms(load, times.d, alone.step_ms)
    if backlog is not None:
        joined = joined + np.maximum(backlog[moves.answers] - first, 0.0)
    return _Computed(new, computed, first, np.where(apart, joined, 0.0))


def prompt_ms(scene: Scene, d: Floats, q: Floats, new: Floats) -> Floats:
    """What the last `new` tokens of the prompt take to be computed."""
    computed = d * new
    if np.count_nonzero(q):
        prompt = scene.request.prompt_tokens
        held = prompt - new
        computed = computed + q * (prompt**2 - held * held)
    return computed


def _ratios(scene: Scene, moves: Moves, ttft_ms: Floats, transfer_ms: Floats, spread: Floats) -> _Ratios:
    times = scene.times
    wait = np.maximum(ttft_ms + transfer_ms, 1e-9)
    return _Ratios(
        (ttft_ms * times.ttft_p50[moves.computes] + transfer_ms) / wait,
        (ttft_ms * times.ttft_p90[moves.computes] + transfer_ms * spread) / wait,
        times.step_p50[moves.answers],
        times.step_p90[moves.answers],
    )


def _slo_ms(
    scene: Scene, moves: Moves, done: _Computed, wait_ms: Floats, completion_ms: Floats, ratios: _Ratios
) -> Floats | None:
    view, alone, times = scene.view, scene.alone, scene.times
    own = own_misses_ms(
        scene.request, wait_ms, completion_ms, alone.decode_step_ms[moves.answers], ratios, scene.now_ms
    )
    if not np.count_nonzero(view.table[Column.SLO_DECODING]):
        return own
    output = view.outlook.output_tokens
    answers, computes, apart = moves.answers, moves.computes, moves.apart
    before, after = alone.step_ms[answers], alone.decode_step_ms[answers]
    computed_there = np.where(apart, 0.0, done.computed_ms)
    price = misses_at_ms(answers, view, computed_there, output, before, after, ratios)
    step = alone.step_ms[computes]
    there = _Ratios(ratios.ttft_p50, ratios.ttft_p90, times.step_p50[computes], times.step_p90[computes])
    price = price + apart * misses_at_ms(computes, view, done.computed_ms, output, step, step, there)
    return price if own is None else own + price
