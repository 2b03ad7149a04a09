"""Scores of plans that move KV for all pairs of workers at once: the sums of moves.py, term by term there.

Up to `ALL` workers all pairs are looked at; of more, those of the `SHORT` that are best by themselves on each side.
Promises, adapters and weights are left out here: where they play a part, what is kept is priced again with them.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.policies.cost.alone import Alone, backlog_ms, joining_ms, stepped_ms
from pointsman.core.policies.cost.load import CostLoad, Floats
from pointsman.core.policies.cost.moves import Rows, Scene, most_relief_ms, others_ms, prompt_ms
from pointsman.core.policies.pairs import Mask, Passing, source_rows
from pointsman.core.policies.policy import highest, lowest
from pointsman.core.timing.fleet_times import TimeRows
from pointsman.core.timing.link_rows import LinkBlock, LinkRows
from pointsman.core.timing.prediction import DEFAULT_BUDGET_TOKENS

ALL = 32
SHORT = 16
_ROUNDED = 1 + 1e-9
"""What is less by less than that may be equal, were it not for rounding."""
SOURCES = 32
"""Of pulls: more of them, as many hold the same and the nearest is the best."""
_ANSWERS = np.array([0.0 if reason is Exclusion.NONE else np.inf for reason in Exclusion])
_COMPUTES = np.array([0.0 if reason in (Exclusion.NONE, Exclusion.ROLE) else np.inf for reason in Exclusion])
"""By reason: 0 where the worker may do that, else infinite."""

Number = TypeVar("Number", bound=np.generic)


class Pairs(NamedTuple):
    """Scores by who gives KV (rows) and who answers (columns)."""

    givers: Rows | None
    """Rows of the view; None: all of them."""
    answers: Rows | None
    scores: Floats
    """Infinite where such a plan is not possible."""
    moved_tokens: Floats
    """Of that shape, or one value an answering worker."""
    sizes: Floats
    """Bytes."""
    fits: Mask | None
    """Whether there is room where it would be answered; None: everywhere."""


class Sides(NamedTuple):
    """What scores of prefill and decode apart have of either side alone, one value a worker."""

    giver: Floats
    """Infinite where the worker may not compute the prompt."""
    taker: Floats
    """Infinite where the worker may not answer."""
    moved: Floats
    """Tokens whose KV would have to come to it."""
    copy: Floats
    """The price of the room that the prompt takes where it is computed."""


class Chances(NamedTuple):
    """Which plans may be better than the best worker alone, as far as that is plain at once."""

    apart: bool
    """Some of those with prefill and decode apart."""
    pulls: bool
    sides: Sides | None
    """None: not looked at."""


def chances(
    request: Request,
    view: FleetView,
    alone: Alone,
    passes: Passing,
    times: TimeRows,
    links: LinkRows,
    scores: Floats,
    best: int,
) -> Chances:
    """What plans are worth a closer look. `scores`: of the workers alone, `best`: row of the least of them.

    A plan's score is at least what it has of each side; where the fleet is small enough to know the fastest of its
    links, with what a transfer takes on that one. First with all the relief that there can be, as that is soon told.
    Where bytes of KV are assumed, the first look has to do, as whoever is shown plans is to be told of it.
    """
    if lowest(alone.full) < 0:
        # An engine that says it holds more than fits: copies are as good as paid for, which no bound here reckons with.
        return Chances(passes.any_apart, passes.any_pull, None)
    table = view.table
    least, load = float(scores[best]), alone.load
    most = most_relief_ms(float(alone.ttft_ms[best]), alone.coming_per_ms)
    disturbed_ms = float(load.decoding[best] * alone.computed_ms[best])
    most_relief = min(most, disturbed_ms)
    exclusion = table[Column.EXCLUSION]
    twice = alone.ttft_ms + alone.ttft_ms + alone.waited_ms
    may = scores
    any_out = np.count_nonzero(exclusion) > 0
    if any_out:
        may = scores + _ANSWERS[exclusion]
    fastest = links.fastest_ms_per_byte(table[Column.NODE]) if len(scores) <= ALL else 0.0
    token_ms = fastest * passes.least_bytes
    apart, sides = passes.any_apart, None
    if apart:
        giver = twice + passes.never_gives
        if any_out:
            giver += _COMPUTES[exclusion]
        taker = may - twice
        taker += alone.decode_step_ms + alone.decode_step_ms
        taker += passes.never_takes
        way = (2 * token_ms) * (float(request.prompt_tokens) - table[Column.CACHED_TOKENS])
        taker += way
        placement = alone.terms.get("placement_ms")
        placed = highest(placement) / 2 if placement is not None and passes.any_both else 0.0
        apart = lowest(giver) + lowest(taker) - most_relief - placed < least
        if apart and passes.bytes_known:
            sides = sides_apart(request, view, alone, passes, times, scores, disturbed_ms, most)
            giver = sides.giver + passes.never_gives
            taker = sides.taker + way
            taker += passes.never_takes
            # The sums of a plan's own score are made in another order.
            apart = lowest(giver) + lowest(taker) - placed < least * _ROUNDED
    pulls = passes.any_pull and _pull_may_be_better(view, alone, passes, times, may, token_ms, least + most_relief)
    return Chances(apart, pulls, sides)


def _pull_may_be_better(
    view: FleetView,
    alone: Alone,
    passes: Passing,
    times: TimeRows,
    may: Floats,
    token_ms: float,
    below: float,
) -> bool:
    """`may`: scores of those that may answer; `token_ms`: the way of one token's KV at the least."""
    held = view.table[Column.CACHED_TOKENS]
    most_held = int(held[held.argmax()])
    if not most_held:
        return False
    load = alone.load
    gained = most_held - held
    saved = (np.maximum(times.d - token_ms, 0.0) if passes.bytes_known else times.d) * gained
    if np.count_nonzero(times.q):
        # Attention among the prompt's tokens is saved in full at the most.
        saved += alone.computed_ms - times.d * load.new
    if highest(load.decoding + load.prefill + load.new) > DEFAULT_BUDGET_TOKENS:
        if not passes.bytes_known:
            return True
        # So are all steps but the last one.
        room = np.maximum(1.0, DEFAULT_BUDGET_TOKENS - load.decoding)
        saved += np.ceil((load.prefill + load.new) / room) * alone.step_ms
    saved += saved
    # Those who come to it meanwhile lose something, too.
    best_ms = may - alone.waited_ms
    best_ms -= saved
    best_ms += passes.never_fetches
    best_ms[gained <= 0] = np.inf
    return lowest(best_ms) < below * _ROUNDED


def sides_apart(
    request: Request,
    view: FleetView,
    alone: Alone,
    passes: Passing,
    times: TimeRows,
    scores: Floats,
    disturbed_ms: float,
    most_relief_ms: float,
) -> Sides:
    """Both sides of prefill and decode apart. The last two: as `Scene` has them."""
    table, load = view.table, alone.load
    exclusion = table[Column.EXCLUSION]
    twice = alone.ttft_ms + alone.ttft_ms + alone.waited_ms
    joined = joining_ms(load, times.d, times.overhead_ms, alone.step_ms, alone.decode_step_ms)
    disturbed = load.decoding * alone.computed_ms - disturbed_ms
    copy = alone.again * times.d * load.new * alone.full
    giver = twice + np.minimum(np.maximum(disturbed, -most_relief_ms), most_relief_ms)
    taker = scores - twice + (joined + joined) + others_ms(alone)
    if passes.any_both:
        giver += copy * (1 - passes.only_prompts) if passes.any_only_prompts else copy
    if np.count_nonzero(exclusion):
        taker += _ANSWERS[exclusion]
        giver += _COMPUTES[exclusion]
    return Sides(giver, taker, np.maximum(request.prompt_tokens - table[Column.CACHED_TOKENS], 0.0), copy)


def apart_pairs(scene: Scene, links: LinkRows, sides: Sides | None = None) -> Pairs | None:
    """Prefill and decode apart; None: no pair is possible. `sides`: if they were looked at already."""
    passing, alone, times = scene.passing, scene.alone, scene.times
    if not passing.any_apart:
        return None
    if sides is None:
        sides = sides_apart(
            scene.request,
            scene.view,
            alone,
            passing,
            times,
            scene.scores,
            scene.disturbed_ms,
            scene.most_relief_ms,
        )
    load = alone.load
    giver, taker, moved, copy = sides
    givers = answers = None
    if len(giver) > ALL:
        givers = _least(np.where(passing.gives, giver, np.inf))
        # What has to go there counts as well, by the usual link.
        usual = moved * (2 * passing.token_bytes / links.usual_bytes_per_ms)
        answers = _least(np.where(passing.takes, taker + usual, np.inf))
        if not len(givers) or not len(answers):
            return None
        giver = giver[givers]
        taker, moved = taker[answers], moved[answers]
    block = _links(scene, links, givers, answers)
    token_bytes = passing.token_bytes if givers is None else passing.token_bytes[givers]
    sizes = token_bytes[:, None] * moved
    transfer = block.moving_ms(sizes)
    if scene.ahead is not None:
        ahead = np.maximum(_at(scene.ahead[0], givers)[:, None], _at(scene.ahead[1], answers))
        ahead *= transfer
        ahead -= _at(alone.ttft_ms, givers)[:, None]
        transfer += np.maximum(ahead, 0.0)
    transfer += block.floor_ms
    scores = block.excess * transfer
    scores += (_at(alone.ttft_ms * scene.excess, givers) - scene.usual_risk_ms)[:, None]
    np.maximum(scores, 0.0, out=scores)
    scores += transfer
    backlog = backlog_ms(load, times.d, alone.step_ms)
    if backlog is not None:
        scores += np.maximum(_at(backlog, answers) - _at(alone.ttft_ms, givers)[:, None], 0.0)
    scores *= 2
    scores += giver[:, None]
    scores += taker
    scores += passing.kept_from(givers, answers, apart=True)
    if passing.any_only_prompts:
        lost = _at(copy, givers)[:, None] - _at(alone.terms["eviction_ms"], answers)
        scores += np.maximum(lost, 0.0) * _at(passing.only_prompts, givers)[:, None]
    placement = alone.terms.get("placement_ms")
    if placement is not None and passing.any_both:
        both = _at((1 - passing.only_prompts) / 2, givers)
        scores += both[:, None] * (_at(placement, givers)[:, None] - _at(placement, answers))
    return Pairs(givers, answers, scores, moved, sizes, None if scene.fits is None else _at(scene.fits, answers))


def pull_pairs(scene: Scene, links: LinkRows) -> Pairs | None:
    """The beginning of the prompt from another one; None: nobody holds more than those who may answer."""
    passing, alone, times, table = scene.passing, scene.alone, scene.times, scene.view.table
    if not passing.any_pull:
        return None
    sources = source_rows(scene.view)
    held = table[Column.CACHED_TOKENS]
    if not len(sources) or int(held[sources].max()) <= int(held.min()):
        return None
    prompt = scene.request.prompt_tokens
    score = scene.scores
    exclusion = table[Column.EXCLUSION]
    if np.count_nonzero(exclusion):
        score = score + _ANSWERS[exclusion]
    answers: Rows | None = None
    if len(held) > ALL:
        sources = sources[_least(-held[sources].astype(np.float64), SOURCES)]
        most_new = np.minimum(alone.load.new, prompt - float(held[sources].max()))
        saved = alone.computed_ms - prompt_ms(scene, times.d, times.q, most_new)
        answers = _least(np.where(passing.takes, score - 2 * saved, np.inf))
        if not len(answers):
            return None
    load = alone.load
    given = held[sources][:, None]
    moved = given - _at(held, answers)
    was_new = _at(load.new, answers)
    new = np.minimum(was_new, prompt - given)
    d, ttft = _at(times.d, answers), _at(alone.ttft_ms, answers)
    computed = prompt_ms(scene, d, _at(times.q, answers), new)
    if highest(load.decoding + load.prefill + load.new) <= DEFAULT_BUDGET_TOKENS:
        first = ttft - (_at(alone.computed_ms, answers) - computed)
    else:
        there = CostLoad(
            new,
            *(_at(values, answers) for values in (load.waiting, load.decoding, load.there)),
            *(_at(values, answers) for values in (load.prefill, load.context)),
        )
        first = stepped_ms(there, d, _at(times.overhead_ms, answers), _at(alone.step_ms, answers), computed)
    block = _links(scene, links, sources, answers)
    sizes = passing.token_bytes[sources][:, None] * moved
    transfer = block.moving_ms(sizes)
    under_way = table[Column.TRANSFERS_OUT : Column.TRANSFERS_IN + 1]
    if np.count_nonzero(under_way):
        transfer *= 1 + np.maximum(under_way[0][sources][:, None], _at(under_way[1], answers))
    transfer += block.floor_ms
    risk = first * _at(scene.excess, answers) + block.excess * transfer
    most = scene.most_relief_ms
    disturbed = _at(load.decoding, answers) * computed - scene.disturbed_ms
    held_ms = first + transfer
    scores = np.minimum(np.maximum(disturbed, -most), most)
    scores += 2 * (held_ms + np.maximum(risk - scene.usual_risk_ms, 0.0))
    scores += alone.coming_per_ms * held_ms * held_ms
    scores += _at(score, answers) - 2 * ttft - _at(alone.waited_ms, answers)
    scores += passing.kept_from(sources, answers, apart=False)
    scores[(moved <= 0) | (new >= was_new)] = np.inf
    return Pairs(sources, answers, scores, moved, sizes, None if scene.fits is None else _at(scene.fits, answers))


def _at(values: NDArray[Number], rows: Rows | None) -> NDArray[Number]:
    return values if rows is None else values[rows]


def _least(values: Floats, most: int = SHORT) -> Rows:
    """Rows of the least values that are not infinite."""
    rows: Rows = np.argpartition(values, most - 1)[:most] if len(values) > most else np.arange(len(values))
    return rows[values[rows] < np.inf]


def _links(scene: Scene, links: LinkRows, givers: Rows | None, answers: Rows | None) -> LinkBlock:
    """All links between them."""
    nodes = scene.view.table[Column.NODE]
    if answers is None:
        among = links.among(nodes)
        return among if givers is None else among.of(givers)
    return links.block(_at(nodes, givers), nodes[answers])
