"""Plans that move KV beside those for one worker: which are kept, which is chosen.

All pairs are scored (pairs.py); the best `KEPT` of prefill and decode apart, and as many pulls, are plans of the
decision. What would not fit where it is answered, or is larger than the operator allows, is shown among them, and can't
be chosen. Where it is plain that no plan can be better than the best worker alone, plans are worked out when somebody
looks at them; else the choice is made at once, as a rule, and what is shown beside it when somebody looks; and so it is
with the terms of all. That may be in any thread, so what is looked up of links is looked up anew.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision, PlanRows, PlanRowsLater, TermsLater
from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Column, FleetView
from pointsman.core.policies.cost.alone import Alone, total
from pointsman.core.policies.cost.load import Floats
from pointsman.core.policies.cost.moves import (
    Moves,
    Rows,
    Scene,
    has_rare_terms,
    most_relief_ms,
    move_terms,
    size_bytes,
    transfers_ahead,
)
from pointsman.core.policies.cost.pairs import Pairs, Sides, apart_pairs, chances, pull_pairs
from pointsman.core.policies.pairs import BYTES_UNKNOWN, Mask, free_tokens, needed_tokens, no_room, passing, too_large
from pointsman.core.policies.policy import least_row, lowest
from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_rows import LinkRows
from pointsman.core.timing.link_times import LinkTimes

_ALWAYS = TransferMode.ALWAYS
_NO_SCORES = np.zeros(0)
KEPT = 16
"""Plans of a kind that are kept."""
KEPT_EXCLUDED = 4
"""Plans of a kind that may not be chosen and are shown, if they would have been good."""


def with_plans(
    made: Decision, request: Request, times: FleetTimes, alone: Alone, best: int, rng: random.Random
) -> Decision:
    """The decision with the plans beside it, and for the best of all. `best`: the row that it is for now."""
    view = made.view
    passes = passing(view)
    scores: Floats = np.asarray(made.scores, dtype=np.float64)
    if not (passes.any_apart or passes.any_pull):
        return made

    # What is worked out later must not keep `times` with all of its arrays: many decisions are kept.
    rows, excess, links = times.rows(view.workers), times.ttft_excess(view.workers), times.links
    if alone.overhead_ms is not rows.overhead_ms:
        rows = replace(rows, overhead_ms=alone.overhead_ms)

    def scene() -> Scene:
        ttft_ms = float(alone.ttft_ms[best])
        return Scene(
            request=request,
            view=view,
            times=rows,
            excess=excess,
            passing=passes,
            ahead=transfers_ahead(view, passes.only_prompts),
            now_ms=made.at_ms,
            alone=alone,
            scores=scores,
            best=best,
            fits=_fits(request, view),
            disturbed_ms=float(alone.load.decoding[best] * alone.computed_ms[best]),
            most_relief_ms=most_relief_ms(ttft_ms, alone.coming_per_ms),
            usual_risk_ms=ttft_ms * float(excess[best]),
        )

    if view.transfer.mode is _ALWAYS or has_rare_terms(alone):
        return _decided(made, scene(), links, times.link_rows, rng)
    link_rows = times.link_rows
    found = chances(request, view, alone, passes, rows, link_rows, scores, best)
    if not found.apart and not found.pulls:
        return replace(made, plans=PlanRowsLater(lambda: _rows(scene(), links, LinkRows(links))[0]))
    seen = scene()
    if passes.bytes_known:
        pulls = _kept(seen, pull_pairs(seen, link_rows), apart=False) if found.pulls else None
        apart = _kept(seen, apart_pairs(seen, link_rows, found.sides), apart=True)
        if apart is None and pulls is None and found.pulls:
            return made
        return _chosen_at_once(made, seen, links, apart, pulls, rng)
    return _decided(made, seen, links, link_rows, rng, found.sides)


def _decided(
    made: Decision, scene: Scene, links: LinkTimes, link_rows: LinkRows, rng: random.Random, sides: Sides | None = None
) -> Decision:
    view, passes = scene.view, scene.passing
    plans, moves = _rows(scene, links, link_rows, sides, rng)
    if moves is None:
        return made
    note = made.note
    if not passes.bytes_known and not np.all(view.table[Column.KV_TOKEN_BYTES, moves.gives]):
        note = BYTES_UNKNOWN if note is None else f"{note}; {BYTES_UNKNOWN}"
    plan, number = made.plan, plans.chosen
    if number >= 0:
        plan = _plan(view, moves.gives[number], moves.answers[number], apart=bool(moves.apart[number]))
    return replace(made, plans=plans, plan=plan, note=note)


def _chosen_at_once(
    made: Decision, scene: Scene, links: LinkTimes, apart: _Kept | None, pulls: _Kept | None, rng: random.Random
) -> Decision:
    """Without what is shown beside it. `pulls`: None also where none can be better."""
    of_apart = _NO_SCORES if apart is None else apart.scores[: apart.allowed]
    of_pulls = _NO_SCORES if pulls is None else pulls.scores[: pulls.allowed]
    number = _best(scene, np.concatenate((of_apart, of_pulls)), rng)
    plan = made.plan
    if apart is not None and 0 <= number < len(of_apart):
        plan = _plan(scene.view, apart.gives[number], apart.answers[number], apart=True)
    elif pulls is not None and number >= 0:
        number -= len(of_apart)
        plan = _plan(scene.view, pulls.gives[number], pulls.answers[number], apart=False)
        # Plans apart come first among those that are shown.
        number += 0 if apart is None else len(apart.scores)
    plans = PlanRowsLater(lambda: _rows(scene, links, LinkRows(links))[0], chosen=number)
    return replace(made, plans=plans, plan=plan)


def _rows(
    scene: Scene,
    links: LinkTimes,
    link_rows: LinkRows,
    sides: Sides | None = None,
    rng: random.Random | None = None,
) -> tuple[PlanRows, Moves | None]:
    """The plans that are kept, priced; no moves where there are none.

    `link_rows`: those of `links`; `rng`: decides between equals, None: it is decided already.
    """
    apart, pulls = apart_pairs(scene, link_rows, sides), pull_pairs(scene, link_rows)
    kept = _joined(_kept(scene, apart, apart=True), _kept(scene, pulls, apart=False))
    if kept is None:
        none = np.zeros(0, dtype=np.intp)
        return PlanRows(none, none, none, none, np.zeros(0), {}), None
    moves, scores, any_excluded = kept
    terms: Mapping[str, Floats] = TermsLater(lambda: move_terms(scene, LinkRows(links), moves))
    if has_rare_terms(scene.alone):
        terms = move_terms(scene, link_rows, moves)
        scores = total(terms)
    excluded = _excluded(scene, moves) if any_excluded else {}
    if excluded:
        scores[list(excluded)] = np.inf
    plans = PlanRows(
        prefill=np.where(moves.apart, moves.gives, -1),
        decode=moves.answers,
        source=np.where(moves.apart, -1, moves.gives),
        moved_tokens=moves.moved_tokens,
        scores=scores,
        terms=terms,
        excluded=excluded,
        chosen=-1 if rng is None else _chosen(scene, moves, scores, rng),
    )
    return plans, moves


def _fits(request: Request, view: FleetView) -> Mask | None:
    fits: Mask = free_tokens(view) >= needed_tokens(request, view)
    return None if np.count_nonzero(fits) == len(fits) else fits


class _Kept(NamedTuple):
    """Plans of one kind, one entry each."""

    gives: Rows
    answers: Rows
    moved_tokens: NDArray[np.int64]
    scores: Floats
    allowed: int
    """How many may be chosen; these come first."""

    @property
    def any_excluded(self) -> bool:
        return self.allowed < len(self.scores)


def _joined(apart: _Kept | None, pulls: _Kept | None) -> tuple[Moves, Floats, bool] | None:
    """Both kinds, their scores, and whether some may not be chosen."""
    if apart is None:
        if pulls is None:
            return None
        is_apart = np.zeros(len(pulls.gives), dtype=np.bool_)
        moves = Moves(pulls.answers, pulls.answers, pulls.gives, is_apart, pulls.moved_tokens)
        return moves, pulls.scores, pulls.any_excluded
    count = len(apart.gives)
    if pulls is None:
        is_apart = np.ones(count, dtype=np.bool_)
        return (
            Moves(apart.gives, apart.answers, apart.gives, is_apart, apart.moved_tokens),
            apart.scores,
            (apart.any_excluded),
        )
    answers = np.concatenate((apart.answers, pulls.answers))
    moves = Moves(
        computes=np.concatenate((apart.gives, pulls.answers)),
        answers=answers,
        gives=np.concatenate((apart.gives, pulls.gives)),
        apart=np.arange(len(answers)) < count,
        moved_tokens=np.concatenate((apart.moved_tokens, pulls.moved_tokens)),
    )
    return moves, np.concatenate((apart.scores, pulls.scores)), apart.any_excluded or pulls.any_excluded


def _kept(scene: Scene, pairs: Pairs | None, *, apart: bool) -> _Kept | None:
    """The best of these plans."""
    if pairs is None:
        return None
    scores = pairs.scores
    allowed: NDArray[np.bool_] | None = None
    if pairs.fits is not None:
        allowed = np.broadcast_to(pairs.fits, scores.shape)
    most_bytes = scene.view.transfer.most_bytes
    if most_bytes:
        small = pairs.sizes <= most_bytes
        allowed = small if allowed is None else allowed & small
    if not apart:
        scores = _best_sources(scores, allowed)
    flat = scores.ravel()
    if allowed is None:
        numbers = _least(flat, KEPT)
        count = len(numbers)
    else:
        numbers, count = _least_of_both(flat, allowed.ravel())
    if not len(numbers):
        return None
    one, other = np.divmod(numbers, scores.shape[1])
    answers = other if pairs.answers is None else pairs.answers[other]
    gives = one if pairs.givers is None else pairs.givers[one]
    moved = pairs.moved_tokens[other] if pairs.moved_tokens.ndim == 1 else pairs.moved_tokens[one, other]
    return _Kept(gives, answers, moved.astype(np.int64), flat[numbers], count)


def _best_sources(scores: Floats, allowed: NDArray[np.bool_] | None) -> Floats:
    """The best source of each worker only; one that may not be chosen only where none may."""
    judged = scores
    if allowed is not None:
        some = (allowed & np.isfinite(scores)).any(axis=0)
        judged = np.where(some & ~allowed, np.inf, scores)
    columns = np.arange(scores.shape[1])
    best = judged.argmin(axis=0), columns
    only = np.full(scores.shape, np.inf)
    only[best] = judged[best]
    return only


def _least_of_both(scores: Floats, allowed: NDArray[np.bool_]) -> tuple[Rows, int]:
    """Those that may be chosen first, and how many they are."""
    chosen = _least(np.where(allowed, scores, np.inf), KEPT)
    return np.concatenate((chosen, _least(np.where(allowed, np.inf, scores), KEPT_EXCLUDED))), len(chosen)


def _least(values: Floats, most: int) -> Rows:
    """Indices of the least values, but for infinite ones."""
    rows: Rows = (values < np.inf).nonzero()[0]
    return rows if len(rows) <= most else rows[values[rows].argpartition(most - 1)[:most]]


def _excluded(scene: Scene, moves: Moves) -> dict[int, str]:
    """Number of a plan → why it may not be chosen."""
    view = scene.view
    excluded: dict[int, str] = {}
    most_bytes = view.transfer.most_bytes
    if most_bytes:
        sizes = size_bytes(scene, moves)
        for number in (sizes > most_bytes).nonzero()[0].tolist():
            excluded[number] = too_large(float(sizes[number]), most_bytes)
    needed, free = needed_tokens(scene.request, view), free_tokens(view)[moves.answers]
    for number in (free < needed).nonzero()[0].tolist():
        excluded[number] = no_room(float(free[number]), needed)
    return excluded


def _chosen(scene: Scene, moves: Moves, scores: Floats, rng: random.Random) -> int:
    """Number of the plan that is chosen; -1: none."""
    if scene.view.transfer.mode is _ALWAYS:
        apart = (moves.apart & np.isfinite(scores)).nonzero()[0]
        if len(apart):
            return least_row(scores, apart, rng)
    return _best(scene, scores, rng)


def _best(scene: Scene, scores: Floats, rng: random.Random) -> int:
    """The same where nothing but the score counts."""
    if not len(scores):
        return -1
    least = lowest(scores)
    if least >= float(scene.scores[scene.best]):
        return -1
    best = (scores == least).nonzero()[0]
    return int(best[0]) if len(best) == 1 else int(best[rng.randrange(len(best))])


def _plan(view: FleetView, gives: np.intp, answers: np.intp, *, apart: bool) -> Plan:
    giver, worker = view.workers[gives], view.workers[answers]
    if apart:
        return Disaggregate(giver, worker)
    return Aggregate(worker, Pull(giver, int(view.table[Column.CACHED_TOKENS, gives])))
