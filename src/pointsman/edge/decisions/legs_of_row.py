"""What a row says of KV that was moved for its request, or was to be."""

from __future__ import annotations

from pointsman.edge.decisions.plans import ALONE, APART, PULL
from pointsman.edge.telemetry.decision_row import DecisionRow, LoggedCandidate, LoggedPlan


def kind_of(row: DecisionRow) -> str:
    """Of the plan that was chosen."""
    if row.prefill_worker is not None:
        return APART
    return PULL if row.pull_source is not None else ALONE


def plan_kind(plan: LoggedPlan) -> str:
    """Of one of its plans that move KV."""
    return APART if plan.prefill is not None else PULL


def was_moved(row: DecisionRow) -> bool:
    """Whether its first token rests on what another worker gave."""
    return row.legs is not None and row.legs.fallback is None


def chosen_plan(row: DecisionRow) -> LoggedPlan | None:
    """Of those that move KV, the one that was chosen; None: none was, or it was not written down."""
    if kind_of(row) == ALONE:
        return None
    wanted = (row.worker, row.prefill_worker, row.pull_source)
    return next((one for one in row.plans if (one.worker, one.prefill, one.source) == wanted), None)


def best_plan(row: DecisionRow, kind: str) -> LoggedPlan | None:
    """The best of a kind that moves KV that could be chosen, else the best of those that were excluded."""
    alike = [one for one in row.plans if plan_kind(one) == kind]
    return min(alike, key=lambda one: (one.excluded is not None, _score(one.score)), default=None)


def best_alone(row: DecisionRow) -> LoggedCandidate | None:
    """The best worker that would do all of it."""
    able = [one for one in row.candidates if one.excluded is None and one.score is not None]
    return min(able, key=lambda one: (_score(one.score), one.worker != row.worker), default=None)


def path(plan: LoggedPlan) -> str:
    """Who gives KV to whom."""
    return f"{plan.prefill or plan.source} → {plan.worker}"


def _score(score: float | None) -> float:
    return float("inf") if score is None else score
