"""Workers that may fetch the beginning of a prompt instead of computing it, each from the best that holds it."""

from __future__ import annotations

import numpy as np

from pointsman.core.model.view import Column
from pointsman.core.policies.cost_alone import first_token_ms
from pointsman.core.policies.cost_apart import MOST_A_SIDE, kept, least
from pointsman.core.policies.cost_load import CostLoad, Floats
from pointsman.core.policies.cost_moves import Moves, Rows, Scene
from pointsman.core.policies.pairs import (
    fetching_rows,
    free_tokens,
    needed_tokens,
    pairs,
    source_rows,
    token_bytes,
)

MOST_SOURCES = 16
"""That hold the most."""


def pull_moves(scene: Scene) -> Moves | None:
    """The most promising pulls, one for a worker; None if there is none."""
    request, view, alone = scene.request, scene.view, scene.alone
    sources = source_rows(view)
    if not len(sources):
        return None
    targets = fetching_rows(view)
    held = view.table[Column.CACHED_TOKENS]
    if not len(targets) or held[sources].max() <= held[targets].min():
        return None
    if len(sources) > MOST_SOURCES:
        sources = sources[least(-held[sources].astype(np.float64), MOST_SOURCES)]
    if len(targets) > MOST_A_SIDE:
        targets = targets[least(_at_best_ms(scene, targets, int(held[sources].max())), MOST_A_SIDE)]
    moved = held[sources][:, None] - held[targets]
    new = np.minimum(alone.load.new[targets], request.prompt_tokens - held[sources][:, None])
    possible = pairs(view, sources, targets) & (moved > 0) & (new < alone.load.new[targets])
    if not possible.any():
        return None
    sizes = token_bytes(view, sources)[:, None] * moved
    computed = _computed_ms(scene, targets, new)
    guess = (
        scene.scores[targets]
        - 2 * (alone.computed_ms[targets] - computed)
        + 2 * _transfer_ms(scene, sources, targets, sizes)
    )
    allowed = possible & (free_tokens(view, targets) >= needed_tokens(request, view))
    if view.transfer.most_bytes:
        allowed &= sizes <= view.transfer.most_bytes
    # The best source of each; one that may not be chosen only where none may.
    from_best = np.where(allowed.any(axis=0), np.where(allowed, guess, np.inf), np.where(possible, guess, np.inf))
    source = from_best.argmin(axis=0)
    columns = np.arange(len(targets))
    chosen = kept(from_best[source, columns], possible[source, columns], allowed[source, columns])
    if not len(chosen):
        return None
    row, answers = source[chosen], targets[chosen]
    computed_ms, new_tokens = computed[row, chosen], new[row, chosen]
    return Moves(
        computes=answers,
        answers=answers,
        gives=sources[row],
        apart=np.zeros(len(chosen), dtype=np.bool_),
        first_ms=_first_ms(scene, answers, new_tokens, computed_ms),
        joined_ms=np.zeros(len(chosen)),
        new=new_tokens,
        computed_ms=computed_ms,
        moved_tokens=moved[row, chosen],
        size_bytes=sizes[row, chosen],
    )


def _computed_ms(scene: Scene, rows: Rows, new: Floats) -> Floats:
    times, prompt = scene.times, scene.request.prompt_tokens
    computed: Floats = times.d[rows] * new
    if np.count_nonzero(times.q):
        held = prompt - new
        computed = computed + times.q[rows] * (prompt**2 - held * held)
    return computed


def _first_ms(scene: Scene, rows: Rows, new: Floats, computed_ms: Floats) -> Floats:
    load, times = scene.alone.load, scene.times
    there = CostLoad(
        new, load.waiting[rows], load.decoding[rows], load.there[rows], load.prefill[rows], load.context[rows]
    )
    return first_token_ms(there, times.d[rows], times.overhead_ms[rows], scene.alone.step_ms[rows], computed_ms)


def _transfer_ms(scene: Scene, sources: Rows, targets: Rows, sizes: Floats) -> Floats:
    table = scene.view.table
    link = scene.links.of(table[Column.NODE, sources][:, None], table[Column.NODE, targets])
    under_way = np.maximum(table[Column.TRANSFERS_OUT, sources][:, None], table[Column.TRANSFERS_IN, targets])
    return scene.links.ms(link, sizes, under_way)


def _at_best_ms(scene: Scene, targets: Rows, most_held: int) -> Floats:
    """The score of each if it had all that anybody holds, for nothing."""
    new = np.minimum(scene.alone.load.new[targets], scene.request.prompt_tokens - most_held)
    saved = scene.alone.computed_ms[targets] - _computed_ms(scene, targets, new)
    lowest: Floats = scene.scores[targets] - 2 * saved
    return lowest
