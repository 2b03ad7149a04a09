"""What several front ends say of one rollout, added up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pointsman.core.model.errors import EngineError
from pointsman.core.trials.comparison import Sums
from pointsman.edge.serving.rollout_order import RolloutOrder
from pointsman.edge.serving.rollout_report import RolloutDocument, RolloutReport, ShadowReport, report


def added_up(documents: Sequence[RolloutDocument]) -> RolloutDocument:
    """One document of all front ends. Raises EngineError when they don't do the same."""
    first = documents[0]
    if len(documents) == 1:
        return RolloutDocument(first.policy, first.rollout, first.shadows)
    kinds = {_kind(document) for document in documents}
    if len(kinds) > 1:
        raise EngineError(f"the front ends do not do the same: {' / '.join(sorted(kinds))}; give the order again")
    reports = [document.rollout for document in documents if document.rollout is not None]
    total = _rollout(reports, [document.sums for document in documents if document.sums is not None])
    return RolloutDocument(first.policy, total, _shadows([document.shadows for document in documents]))


def _kind(document: RolloutDocument) -> str:
    one = document.rollout
    if one is None:
        return f"{document.policy} alone"
    return f"{document.policy} and {one.policy} for {100 * one.share:.4g} % by {one.by}, {one.state}"


def _rollout(reports: Sequence[RolloutReport], sums: Iterable[Sums]) -> RolloutReport | None:
    if not reports:
        return None
    first = reports[0]
    total = Sums()
    for one in sums:
        total.merge(one)
    order = RolloutOrder(
        first.policy, first.share, first.by, first.worse_by, first.auto_rollback, first.why, first.ended_s
    )
    made = report(order, first.base, total)
    made.started_s = min(one.started_s for one in reports)
    made.errors = sum(one.errors for one in reports)
    made.without_session = sum(one.without_session for one in reports)
    return made


def _shadows(lists: Iterable[list[ShadowReport]]) -> list[ShadowReport]:
    by: dict[str, list[ShadowReport]] = {}
    for shadows in lists:
        for shadow in shadows:
            by.setdefault(shadow.policy, []).append(shadow)
    return [
        ShadowReport(
            policy=policy,
            off=next((one.off for one in ones if one.off is not None), None),
            decisions=sum(one.decisions for one in ones),
            failed=sum(one.failed for one in ones),
            agreement=_mean((one.agreement, one.decisions) for one in ones),
            compared=sum(one.compared for one in ones),
            predicted_saving_ms=_mean((one.predicted_saving_ms, one.compared) for one in ones),
            decision_us=_mean((one.decision_us, one.decisions + one.failed) for one in ones),
        )
        for policy, ones in by.items()
    ]


def _mean(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
