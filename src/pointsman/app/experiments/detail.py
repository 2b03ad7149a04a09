"""Which point of a sweep is shown in detail."""

from __future__ import annotations

from pointsman.app.experiments.summary import PointSummary, Summary


def detail_point(summary: Summary) -> int:
    """Its number: where the best policy just keeps the SLO, since there policies differ most; without a knee the
    middle.

    Points without a finished run are never chosen, as long as there is another.
    """
    numbers = [number for number, point in enumerate(summary.points) if point.policies] or [0]
    if summary.sweep is None:
        return numbers[0]
    knees = [knee.value for knee in summary.sweep.knees if knee.value is not None and knee.beyond is not None]
    if knees:
        hardest = min(knees) if summary.sweep.axis == "workers" else max(knees)
        at_knee = [number for number in numbers if summary.points[number].value == hardest]
        if at_knee:
            return at_knee[0]
    if summary.sweep.axis == "roles":
        return max(numbers, key=lambda number: best_goodput(summary.points[number]))
    return numbers[len(numbers) // 2]


def best_goodput(point: PointSummary) -> float:
    """The best policy's share of requests within the SLO; 0 where nothing was measured."""
    found = [policy.metrics["goodput_share"] for policy in point.policies]
    return max((value.value for value in found if value is not None), default=0.0)
