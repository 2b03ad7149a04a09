"""The plans of a decision that move KV, as rows tell them: the best first, then those that were excluded."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision, PlanRows
from pointsman.core.model.plan import Aggregate, Disaggregate, Plan, Pull
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.edge.telemetry.decision_row import LoggedPlan

MOST_PLANS = 16
"""In a row."""
_DIGITS = 6
_LARGEST = 1e300

APART, PULL, ALONE = "apart", "pull", "aggregated"
"""Kinds of plans, as people are told."""


def pull_of(plan: Plan) -> Pull | None:
    """What of the prompt is fetched."""
    return plan.pull if isinstance(plan, Aggregate | Disaggregate) else None


def moves_kv(plan: Plan) -> bool:
    """Whether more than one worker has part in it."""
    return isinstance(plan, Disaggregate) or pull_of(plan) is not None


def givers(plan: Plan) -> tuple[WorkerId | None, WorkerId | None]:
    """Who computes the prompt for another one, and who is fetched from."""
    pull = pull_of(plan)
    return plan.prefill if isinstance(plan, Disaggregate) else None, None if pull is None else pull.source


def logged_plans(decision: Decision, most: int | None = MOST_PLANS) -> list[LoggedPlan]:
    """At most `most` of them; the chosen one and the best of each kind are always among them."""
    plans = decision.plans
    if plans is None or not len(plans.decode):
        return []
    terms = {name: np.asarray(values, dtype=np.float64) for name, values in plans.terms.items()}
    scores = judged(plans)
    order = sorted(range(len(scores)), key=lambda i: (i in plans.excluded, scores[i], i != plans.chosen))
    always = _always(plans, order)
    others = [number for number in order if number not in always]
    left = len(others) if most is None else max(0, most - len(always))
    kept = {*always, *others[:left]}
    return [_logged(decision.view, plans, number, scores[number], terms) for number in order if number in kept]


def judged(plans: PlanRows) -> list[float]:
    """Scores, of excluded ones what they would have been."""
    scores: list[float] = np.asarray(plans.scores, dtype=np.float64).tolist()
    for number in plans.excluded:
        if not math.isfinite(scores[number]) and plans.terms:
            scores[number] = math.fsum(float(values[number]) for values in plans.terms.values())
    return scores


def _always(plans: PlanRows, order: list[int]) -> list[int]:
    """The chosen one and the best of each kind."""
    found = [] if plans.chosen < 0 else [plans.chosen]
    for apart in (True, False):
        found += [number for number in order if bool(plans.prefill[number] >= 0) is apart][:1]
    return found


def _logged(
    view: FleetView, plans: PlanRows, number: int, score: float, terms: dict[str, NDArray[np.float64]]
) -> LoggedPlan:
    def name(row: int) -> WorkerId | None:
        return view.workers[row] if row >= 0 else None

    prefill, source = int(plans.prefill[number]), int(plans.source[number])
    gives = source if source >= 0 else prefill
    moved = int(plans.moved_tokens[number])
    return LoggedPlan(
        worker=view.workers[int(plans.decode[number])],
        prefill=name(prefill),
        source=name(source),
        moved_tokens=moved,
        moved_bytes=moved * int(view.table[Column.KV_TOKEN_BYTES, gives]),
        score=_number(score),
        excluded=plans.excluded.get(number),
        terms={term: _number(float(values[number])) for term, values in terms.items()},
    )


def _number(value: float) -> float:
    """As JSON can say it."""
    return round(value, _DIGITS) if abs(value) <= _LARGEST else _LARGEST
