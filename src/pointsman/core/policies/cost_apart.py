"""Pairs of workers that may compute the prompt and the answer apart: those that are worth being priced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.view import STAGE_PREFILL, Column
from pointsman.core.policies.cost_alone import joining_ms
from pointsman.core.policies.cost_load import Floats
from pointsman.core.policies.cost_moves import Moves, Rows, Scene
from pointsman.core.policies.pairs import free_tokens, giving_rows, needed_tokens, pairs, taking_rows, token_bytes

MOST_A_SIDE = 32
"""Workers of each side whose pairs are looked at: those that are best by themselves."""
KEPT = 12
"""Plans of a kind that are priced."""
KEPT_EXCLUDED = 4
"""Plans of a kind that may not be chosen and are shown, if they would have been good."""


def apart_moves(scene: Scene) -> Moves | None:
    """The most promising pairs; None if there is none."""
    request, view, alone = scene.request, scene.view, scene.alone
    givers, takers = giving_rows(view), taking_rows(view)
    if not len(givers) or not len(takers):
        return None
    possible = pairs(view, givers, takers)
    if not possible.any():
        return None
    table, times = view.table, scene.times
    joined = joining_ms(alone.load, times.d, times.overhead_ms, alone.step_ms, alone.decode_step_ms)
    one, other = _giver_ms(scene, givers), _taker_ms(scene, takers, joined)
    if len(givers) > MOST_A_SIDE:
        best = least(one, MOST_A_SIDE)
        givers, one, possible = givers[best], one[best], possible[best]
    moved = np.maximum(request.prompt_tokens - table[Column.CACHED_TOKENS, takers], 0)
    if len(takers) > MOST_A_SIDE:
        # What has to go there counts as well, by the usual link.
        usual = moved * (2.0 * float(token_bytes(view, givers[:1])[0]) / scene.links.usual_bytes_per_ms)
        best = least(other + usual, MOST_A_SIDE)
        takers, other, possible, moved = takers[best], other[best], possible[:, best], moved[best]
    sizes = token_bytes(view, givers)[:, None] * moved
    under_way = np.maximum(table[Column.TRANSFERS_OUT, givers][:, None], table[Column.TRANSFERS_IN, takers])
    link = scene.links.of(table[Column.NODE, givers][:, None], table[Column.NODE, takers])
    guess = one[:, None] + other + 2 * scene.links.ms(link, sizes, under_way)
    allowed = possible & (free_tokens(view, takers) >= needed_tokens(request, view))
    if view.transfer.most_bytes:
        allowed &= sizes <= view.transfer.most_bytes
    chosen = kept(guess.ravel(), possible.ravel(), allowed.ravel())
    if not len(chosen):
        return None
    columns = len(takers)
    computes, answers = givers[chosen // columns], takers[chosen % columns]
    return Moves(
        computes=computes,
        answers=answers,
        gives=computes,
        apart=np.ones(len(chosen), dtype=np.bool_),
        first_ms=alone.ttft_ms[computes],
        joined_ms=joined[answers],
        new=alone.load.new[computes],
        computed_ms=alone.computed_ms[computes],
        moved_tokens=moved[chosen % columns],
        size_bytes=sizes.ravel()[chosen],
    )


def _giver_ms(scene: Scene, rows: Rows) -> Floats:
    """What of a score depends on who computes the prompt."""
    alone = scene.alone
    first = alone.ttft_ms[rows]
    room = alone.again * scene.times.d[rows] * alone.load.new[rows] * alone.full[rows]
    copy = np.where(scene.view.table[Column.STAGES, rows] == STAGE_PREFILL, 0.0, room)
    cost: Floats = 2 * first + alone.coming_per_ms * first * first + copy
    return cost


def _taker_ms(scene: Scene, rows: Rows, joined_ms: Floats) -> Floats:
    """What of a score depends on who answers."""
    alone = scene.alone
    answer = max(0.0, scene.view.outlook.output_tokens - 1) * alone.decode_step_ms[rows]
    cost: Floats = 2 * joined_ms[rows] + answer + alone.beside_ms[rows] + alone.terms["eviction_ms"][rows]
    placement = alone.terms.get("placement_ms")
    return cost if placement is None else cost + placement[rows]


def kept(guess: Floats, possible: NDArray[np.bool_], allowed: NDArray[np.bool_]) -> Rows:
    """Numbers of the best plans by a guess: `KEPT` of those that are allowed, `KEPT_EXCLUDED` of the other possible
    ones."""
    chosen = _best(guess, allowed.nonzero()[0], KEPT)
    rest = (possible & ~allowed).nonzero()[0]
    return np.concatenate((chosen, _best(guess, rest, KEPT_EXCLUDED))) if len(rest) else chosen


def _best(guess: Floats, among: Rows, most: int) -> Rows:
    return among if len(among) <= most else among[least(guess[among], most)]


def least(values: Floats, most: int) -> Rows:
    """Indices of the least values, in no order."""
    rows: Rows = np.argpartition(values, most - 1)[:most]
    return rows
