"""Two decisions for one request, by policies that think of one worker: who computes the prompt, and who answers.

So it is where a model has workers for prompts only, or where the operator wants prefill and decode apart. The policy is
first asked among the workers that may compute the prompt for somebody, then among those that can go on with that one's
KV, and have room for it; where nobody has room they wait for it as any request does, at whoever answers. Where no pair
is left one worker computes all of it, as it does where both turn out to be the same one, and the decision says so.
Policies that make plans of their own (`makes_plans`) are left alone.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from pointsman.core.model.decision import Decision, PlanRows
from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.request import Request
from pointsman.core.model.transfer import TransferMode
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.policies.pairs import (
    Mask,
    Rows,
    free_tokens,
    giving_rows,
    moves,
    needed_tokens,
    pairs,
    stages_apart,
    taking_rows,
    token_bytes,
)
from pointsman.core.policies.policy import Policy, Timing

NOBODY_FOR_PROMPTS = "no worker for prompts could be used with one that answers: one worker computes all of it"


def decide(
    policy: Policy, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
) -> Decision:
    """What the policy decides, in two stages where that is wanted. Raises whatever the policy raises."""
    if makes_plans(policy) or not moves(view):
        return policy.decide(request, view, timing, now_ms, rng)
    if view.transfer.mode is not TransferMode.ALWAYS and not stages_apart(view):
        return policy.decide(request, view, timing, now_ms, rng)
    made = _apart(policy, request, view, timing, now_ms, rng)
    if made is not None:
        return made
    made = policy.decide(request, view, timing, now_ms, rng)
    return made if _worker(made) is None else replace(made, note=_notes(made.note, NOBODY_FOR_PROMPTS))


def makes_plans(policy: Policy) -> bool:
    """Whether it thinks of plans that move KV itself."""
    return bool(getattr(policy, "makes_plans", False))


def _apart(
    policy: Policy, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random
) -> Decision | None:
    givers, takers = giving_rows(view), taking_rows(view)
    roomy = takers[(free_tokens(view) >= needed_tokens(request, view))[takers]]
    if len(roomy):
        takers = roomy  # else: to compute it there as a whole takes the same room
    moved = np.maximum(request.prompt_tokens - view.table[Column.CACHED_TOKENS, takers], 0)
    possible = pairs(view, givers, takers)
    if view.transfer.most_bytes:
        possible &= token_bytes(view, givers)[:, None] * moved <= view.transfer.most_bytes
    able = possible.any(axis=1)
    givers, possible = givers[able], possible[able]
    if not len(givers):
        return None
    first = policy.decide(request, _only(view, givers), timing, now_ms, rng)
    row = _worker(first)
    if row is None or row not in givers:
        return None
    # A worker that computes both has nothing to pass on.
    partners = _partners(possible[int((givers == row).argmax())], takers, row, view)
    second = policy.decide(request, _only(view, partners), timing, now_ms, rng)
    other = _worker(second)
    if other is None or other not in partners:
        return None
    note = _notes(first.note, second.note)
    if other == row:
        return replace(second, view=view, note=note)
    terms = {name: np.asarray(values, dtype=np.float64)[givers] for name, values in first.terms.items()}
    plans = PlanRows(
        prefill=givers,
        decode=np.full(len(givers), other, dtype=np.intp),
        source=np.full(len(givers), -1, dtype=np.intp),
        moved_tokens=np.full(len(givers), moved[int((takers == other).argmax())], dtype=np.int64),
        scores=np.asarray(first.scores, dtype=np.float64)[givers],
        terms=terms,
        chosen=int((givers == row).argmax()),
        comparable=False,
    )
    plan = Disaggregate(view.workers[row], view.workers[other])
    return replace(second, view=view, note=note, plans=plans, plan=plan)


def _worker(made: object) -> int | None:
    """The row of the one worker that was chosen; None for all else, also for what policies must not return."""
    if not isinstance(made, Decision) or not isinstance(made.plan, Aggregate):
        return None
    return made.chosen_row if made.plan.worker in made.view.workers else None


def _partners(possible: Mask, takers: Rows, row: int, view: FleetView) -> Rows:
    """Who may answer: those that can go on with its KV, and itself where it may answer and need not be apart."""
    partners = takers[possible]
    itself = view.table[Column.EXCLUSION, row] == Exclusion.NONE
    if itself and view.transfer.mode is not TransferMode.ALWAYS:
        partners = np.sort(np.append(partners, row))
    return partners


def _only(view: FleetView, rows: Rows) -> FleetView:
    """The view of one stage: only these may be chosen."""
    table = view.table.copy()
    exclusion = table[Column.EXCLUSION]
    others = np.ones(len(view), dtype=np.bool_)
    others[rows] = False
    exclusion[rows] = Exclusion.NONE
    exclusion[others & (exclusion == Exclusion.NONE)] = Exclusion.ROLE
    table.flags.writeable = False
    return replace(view, table=table)


def _notes(*notes: str | None) -> str | None:
    told = list(dict.fromkeys(note for note in notes if note))
    return "; ".join(told) or None
