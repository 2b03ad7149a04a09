"""Plans that move KV beside those for one worker: which are priced, which is chosen.

All pairs of the `MOST_A_SIDE` best workers of each side are looked at, and the `KEPT` best of them priced in full
(cost_moves.py); so it is with pulls. What would not fit where it is answered, or is larger than the operator allows, is
shown among the plans, and can't be chosen.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from pointsman.core.model.decision import Decision, PlanRows
from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost_alone import Alone, total
from pointsman.core.policies.cost_apart import apart_moves
from pointsman.core.policies.cost_load import Floats
from pointsman.core.policies.cost_moves import Moves, Rows, Scene, move_terms
from pointsman.core.policies.cost_pull import pull_moves
from pointsman.core.policies.pairs import BYTES_UNKNOWN, free_tokens, needed_tokens, no_room, too_large
from pointsman.core.policies.policy import least_row
from pointsman.core.timing.fleet_times import FleetTimes


def with_plans(
    made: Decision, request: Request, times: FleetTimes, alone: Alone, best: int, rng: random.Random
) -> Decision:
    """The decision with the plans beside it, and for the best of all. `best`: the row that it is for now."""
    view = made.view
    scores: Floats = np.asarray(made.scores, dtype=np.float64)
    rows = times.rows(view.workers)
    scene = Scene(request, view, rows, times.link_rows, made.at_ms, alone, scores, best)
    moves = _joined(apart_moves(scene), pull_moves(scene))
    if moves is None:
        return made
    terms = move_terms(scene, moves)
    plans = _rows(scene, moves, terms)
    chosen = _chosen(scene, moves, plans, rng)
    note = made.note
    if np.count_nonzero(view.table[Column.KV_TOKEN_BYTES, moves.gives] == 0):
        note = BYTES_UNKNOWN if note is None else f"{note}; {BYTES_UNKNOWN}"
    if chosen < 0:
        return replace(made, plans=plans, note=note)
    plan = _plan(view, moves, chosen)
    return replace(made, plans=replace(plans, chosen=chosen), plan=plan, note=note)


def _joined(one: Moves | None, other: Moves | None) -> Moves | None:
    if one is None or other is None:
        return one if other is None else other
    return Moves(*(np.concatenate(both) for both in zip(one, other, strict=True)))


def _rows(scene: Scene, moves: Moves, terms: dict[str, Floats]) -> PlanRows:
    scores = total(terms)
    view = scene.view
    excluded: dict[int, str] = {}
    needed = needed_tokens(scene.request, view)
    free = free_tokens(view, moves.answers)
    most_bytes = view.transfer.most_bytes
    if most_bytes:
        for number in (moves.size_bytes > most_bytes).nonzero()[0].tolist():
            excluded[number] = too_large(float(moves.size_bytes[number]), most_bytes)
    for number in (free < needed).nonzero()[0].tolist():
        excluded[number] = no_room(float(free[number]), needed)
    if excluded:
        scores[list(excluded)] = np.inf
    apart = moves.apart
    none: Rows = np.full(len(scores), -1, dtype=np.intp)
    return PlanRows(
        prefill=np.where(apart, moves.computes, none),
        decode=moves.answers,
        source=np.where(apart, none, moves.gives),
        moved_tokens=moves.moved_tokens,
        scores=scores,
        terms=terms,
        excluded=excluded,
    )


def _chosen(scene: Scene, moves: Moves, plans: PlanRows, rng: random.Random) -> int:
    """Number of the plan that is chosen; -1: none."""
    finite = np.isfinite(plans.scores)
    if scene.view.transfer.mode is TransferMode.ALWAYS:
        apart = (finite & moves.apart).nonzero()[0]
        if len(apart):
            return least_row(plans.scores, apart, rng)
    allowed = finite.nonzero()[0]
    if not len(allowed) or float(plans.scores[allowed].min()) >= float(scene.scores[scene.best]):
        return -1
    return least_row(plans.scores, allowed, rng)


def _plan(view: FleetView, moves: Moves, number: int) -> Plan:
    worker = view.workers[moves.answers[number]]
    giver = view.workers[moves.gives[number]]
    if moves.apart[number]:
        return Disaggregate(giver, worker)
    return Aggregate(worker, Pull(giver, int(view.table[Column.CACHED_TOKENS, moves.gives[number]])))
