"""Rows for CSV: one a simulation, or for a summary of nothing, none."""

from __future__ import annotations

from collections.abc import Iterator

from pointsman.app.experiments.document import Summary
from pointsman.app.experiments.measures import MEASURES

HEADER = ("point", "value", "workers", "rate", "clients", "policy", "seed", *MEASURES, "saturated")


def csv_rows(summary: Summary) -> Iterator[tuple[object, ...]]:
    """Values of `HEADER`, run by run; an empty cell where nothing was measured."""
    for point in summary.points:
        for policy in point.policies:
            for run in policy.runs:
                values = (run.metrics[key] for key in (*MEASURES, "saturated"))
                where = (point.name, point.value, point.workers, point.rate, point.clients, policy.policy, run.seed)
                yield tuple("" if value is None else value for value in (*where, *values))
