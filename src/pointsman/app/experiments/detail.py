"""Which point of a sweep is shown in detail."""

from __future__ import annotations

from pointsman.app.experiments.document import Summary


def detail_point(summary: Summary) -> int:
    """Its number: where the best policy just keeps the SLO, since there policies differ most; without a knee the
    middle; of splits by role the one that most policies do best with.

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
        values = [knee.value for knee in summary.sweep.knees]
        return max(numbers, key=lambda number: values.count(summary.points[number].value))
    return numbers[len(numbers) // 2]
