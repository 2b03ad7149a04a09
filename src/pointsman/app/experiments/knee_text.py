"""How far policies go in a sweep, and which split of a fleet suits them, in sentences."""

from __future__ import annotations

import math

from pointsman.app.experiments.comparison import MATTERS
from pointsman.app.experiments.document import KneeSummary, PointSummary, PolicySummary, Value
from pointsman.app.experiments.measures import Kind, shown
from pointsman.app.experiments.sweep import Knee, Sweep
from pointsman.app.experiments.verdict import listed


def best_splits(points: list[PointSummary]) -> list[KneeSummary]:
    """For each policy the split with the best goodput, of those that are alike in it the one with the least P99 E2E."""
    found: dict[str, tuple[tuple[float, float], PointSummary, PolicySummary]] = {}
    for point in points:
        for policy in point.policies:
            share, e2e_ms = policy.metrics["goodput_share"], policy.metrics["e2e_p99_ms"]
            rank = (
                -round(share.value / MATTERS[Kind.SHARE]) if share is not None else 0.0,
                math.inf if e2e_ms is None else e2e_ms.value,
            )
            if policy.policy not in found or rank < found[policy.policy][0]:
                found[policy.policy] = (rank, point, policy)
    return [
        KneeSummary(label, point.value, None, _split_text(label, point.name.partition("=")[2], policy.metrics))
        for label, (_, point, policy) in found.items()
    ]


def _split_text(label: str, split: str, metrics: dict[str, Value | None]) -> str:
    """The sentence on the best split of a fleet by role."""
    numbers = [
        f"{shown(key, value.value)} {what}"
        for key, what in (("goodput_share", "of requests within the SLO"), ("e2e_p99_ms", "P99 E2E"))
        if (value := metrics[key]) is not None
    ]
    role = "prefill:decode" if ":" in split else "workers that do both"
    return f"{label} does best with {split} {role}: {listed(numbers)}."


def knee_text(label: str, found: Knee, sweep: Sweep, target: float) -> str:
    """The sentence on how far a policy goes."""
    share = f"{100 * target:g} % of requests within the SLO"
    if found.value is None:
        at_best = f", not even {_of(found.beyond, sweep.unit)}" if found.beyond is not None else ""
        return f"{label} does not keep {share} at any point{at_best}."
    value = _of(found.value, sweep.unit)
    if found.beyond is None:
        return f"{label} keeps {share} at every point, the hardest being {value}."
    beyond = _of(found.beyond, sweep.unit)
    if sweep.less_is_harder:
        return f"{label} needs {value} for {share}; {beyond} would be too few."
    return f"{label} keeps {share} up to {value}; {beyond} is too much."


def _of(value: float, unit: str) -> str:
    return f"{value:g} {unit.removesuffix('s') if value == 1 and unit in ('workers', 'clients') else unit}"
