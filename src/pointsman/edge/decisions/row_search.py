"""Searching rows, of the log or of several front ends, as the ring is searched."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from pointsman.edge.decisions.search import Query
from pointsman.edge.telemetry.decision_row import DecisionRow, hashed


def is_named(row: DecisionRow, name: str) -> bool:
    """By our id, or by the `x-request-id` of its client."""
    return row.id == name or (row.client is not None and row.client == hashed(name))


def matches(row: DecisionRow, query: Query) -> bool:
    """Whether it is one of those asked for."""
    return (
        all(
            wanted is None or getattr(row, name) == wanted
            for name, wanted in (
                ("worker", query.worker),
                ("prefill_worker", query.prefill_worker),
                ("policy", query.policy),
                ("status", query.status),
                ("model", query.model),
                ("tenant", query.tenant),
                ("arm", query.arm),
            )
        )
        and (query.since_ms is None or row.at_ms >= query.since_ms)
        and (query.until_ms is None or row.at_ms <= query.until_ms)
    )


def measure(row: DecisionRow, worst: str) -> float | None:
    """What `worst` goes by, in ms; None for a row without it."""
    if worst == "ttft":
        return row.first_token_ms
    if worst == "itl":
        return row.itl_ms
    if worst == "e2e":
        return row.last_token_ms
    if row.ttft_ms is None or row.predicted_ttft_ms is None:
        return None
    return abs(row.ttft_ms - row.predicted_ttft_ms)


def search_rows(rows: Iterable[DecisionRow], query: Query) -> list[DecisionRow]:
    """What was found. `rows`: youngest last, as a log has them; the youngest, or the worst, are first in the answer."""
    matching: Iterable[DecisionRow] = (row for row in rows if matches(row, query))
    if query.worst is None:
        most = query.limit if query.last is None else min(query.last, query.limit)
        return list(reversed(deque(matching, most)))
    if query.last is not None:
        matching = deque(matching, query.last)
    valued = (
        (value, place, row) for place, row in enumerate(matching) if (value := measure(row, query.worst)) is not None
    )
    return [row for _, _, row in heapq.nlargest(query.limit, valued, key=lambda one: one[:2])]
