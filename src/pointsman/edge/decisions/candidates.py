"""The workers of a decision as rows tell them: best first, then those that were excluded."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision
from pointsman.core.model.view import Column, Exclusion
from pointsman.edge.telemetry.decision_row import LoggedCandidate

_DIGITS = 6
"""After the point: a nanosecond."""
_LARGEST = 1e300


def logged_candidates(decision: Decision, most: int | None = None) -> list[LoggedCandidate]:
    """At most `most` of them, the chosen one always among them; it is the first of equals.

    What is no number, or larger than 1e300, is 1e300.
    """
    view = decision.view
    excluded = view.column(Column.EXCLUSION)
    scores = _numbers(decision.scores)
    others = np.ones(len(view), dtype=np.bool_)
    chosen = decision.chosen_row
    if chosen is not None:
        others[chosen] = False
    order = np.lexsort((others, np.where(excluded == 0, scores, 0.0), excluded != 0))[:most]
    if chosen is not None and len(order) and chosen not in order:
        order[-1] = chosen
    rows = order.tolist()
    terms = [(name, _numbers(values)[order].tolist()) for name, values in decision.terms.items()]
    columns = zip(
        rows,
        scores[order].tolist(),
        excluded[order].tolist(),
        view.column(Column.CACHED_TOKENS)[order].tolist(),
        view.load[order].tolist(),
        view.column(Column.WEIGHT_PERMILLE)[order].tolist(),
        strict=True,
    )
    return [
        LoggedCandidate(
            worker=view.workers[row],
            score=None if reason else score,
            excluded=Exclusion(reason).text if reason else None,
            cached=cached,
            load=load,
            terms={name: values[i] for name, values in terms},
            weight=None if weight == 1000 else weight / 1000,
        )
        for i, (row, score, reason, cached, load, weight) in enumerate(columns)
    ]


def exclusions(decision: Decision) -> dict[str, int]:
    """How many workers were excluded, by reason."""
    reasons, counts = np.unique(decision.view.column(Column.EXCLUSION), return_counts=True)
    pairs = zip(reasons.tolist(), counts.tolist(), strict=True)
    return {Exclusion(reason).text: count for reason, count in pairs if reason}


def _numbers(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """As JSON can say them."""
    found = np.asarray(values, dtype=np.float64)
    if not (np.abs(found) <= _LARGEST).all():
        found = np.clip(np.nan_to_num(found, nan=_LARGEST), -_LARGEST, _LARGEST)
    rounded: NDArray[np.float64] = np.round(found, _DIGITS)
    return rounded
