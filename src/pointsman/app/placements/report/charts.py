"""The charts of a simulated cluster. Over time the first seed is drawn, everything else is of all seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pointsman.app.charts.axis import Axis, axis_over, show_number, show_share
from pointsman.app.charts.svg import COLOURS, Bar, Series, bar_chart, line_chart
from pointsman.app.placements.simulation.outcome import Outcome, Sample

_POINTS = 240
_RESTS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of the page."""

    title: str
    caption: str
    svg: str


def charts_of(levels: Sequence[str], runs: Mapping[str, Sequence[Outcome]]) -> Iterator[Chart]:
    """All of them; those that have nothing to show are left out. `levels`: of the topology, near to far."""
    first = {label: outcomes[0] for label, outcomes in runs.items()}
    yield _over_time(
        first,
        "GPUs of whole gangs",
        "Share of the GPUs that are up, first seed.",
        lambda sample: sample.whole_share,
    )
    if any(outcome.partial_gpu_s for outcome in first.values()):
        yield _over_time(
            first,
            "GPUs that stand idle in parts of gangs",
            "Held by gangs that are below their floors, and so compute nothing. First seed.",
            lambda sample: sample.partial_share,
        )
    yield _over_time(
        first, "Gangs that wait", "Those that are not whole, first seed.", lambda sample: float(sample.waiting), False
    )
    yield _waits(runs)
    if any(outcome.handovers for outcomes in runs.values() for outcome in outcomes):
        for at, level in enumerate(levels):
            yield _close(level, at, runs)


def _over_time(outcomes: Mapping[str, Outcome], title: str, caption: str, value: object, share: bool = True) -> Chart:
    assert callable(value)
    series, highest, end_h = [], 0.0, 0.0
    for number, (label, outcome) in enumerate(outcomes.items()):
        points = _thinned(outcome.samples, value)
        highest = max([highest, *(y for _, y in points)])
        end_h = max([end_h, *(x for x, _ in points)])
        series.append(Series(label, number % COLOURS, points))
    x = Axis("hours", 0.0, max(end_h, 0.1))
    if share:
        y = Axis("of the GPUs", 0.0, 1.0 if highest > 0.5 else max(1.1 * highest, 0.01), show=show_share)
    else:
        y = axis_over([highest], "gangs", show=show_number)
    return Chart(title, caption, line_chart(title, x, y, series))


def _thinned(samples: Sequence[Sample], value: object) -> list[tuple[float, float]]:
    """Means over equal spans of time; what a sample says holds until the next one."""
    assert callable(value)
    if len(samples) < 2:
        return [(sample.at_s / 3_600, value(sample)) for sample in samples]
    at_s = np.array([sample.at_s for sample in samples])
    values = np.array([value(sample) for sample in samples])
    total = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(at_s))])
    edges = np.linspace(at_s[0], at_s[-1], min(_POINTS, len(samples)) + 1)
    sums = np.interp(edges, at_s, total)
    means = np.diff(sums) / np.maximum(np.diff(edges), 1e-9)
    return [(float(x) / 3_600, float(y)) for x, y in zip((edges[:-1] + edges[1:]) / 2, means, strict=True)]


def _waits(runs: Mapping[str, Sequence[Outcome]]) -> Chart:
    title = "How long gangs wait"
    series, highest = [], 1.0
    for number, (label, outcomes) in enumerate(runs.items()):
        waits = np.sort(np.concatenate([np.array(outcome.waits_s) for outcome in outcomes]))
        if not len(waits):
            continue
        # The rest that still waits after so long; those that were placed at once are at the left edge.
        rests = 1 - np.arange(len(waits)) / len(waits)
        points = [(max(float(wait), 1.0), float(rest)) for wait, rest in zip(waits, rests, strict=True) if rest >= 0.01]
        highest = max(highest, points[-1][0])
        step = max(1, len(points) // _POINTS)
        series.append(Series(label, number % COLOURS, [*points[:-1:step], points[-1]]))
    x = Axis("time from submission", 1.0, max(highest, 10.0), log=True, show=_span)
    y = Axis("gangs that still wait", 0.01, 1.0, log=True, show=show_share, wanted_ticks=_RESTS)
    caption = "Share of all gangs; both axes logarithmic. Who was never placed counts until the end of the run."
    return Chart(title, caption, line_chart(title, x, y, series))


def _close(level: str, at: int, runs: Mapping[str, Sequence[Outcome]]) -> Chart:
    title = f"Prefill and decode in the same {level}"
    bars = []
    for number, (label, outcomes) in enumerate(runs.items()):
        handovers = [shares for outcome in outcomes for shares in outcome.handovers]
        value = float(np.mean([sum(shares[: at + 1]) for shares in handovers])) if handovers else math.nan
        text = "–" if math.isnan(value) else f"{100 * value:.1f} %"
        bars.append(Bar(label, number % COLOURS, value, text))
    axis = Axis("of all pairs of pods", 0.0, 1.0, show=show_share)
    return Chart(title, "Mean over gangs, as they were placed; all seeds.", bar_chart(title, axis, bars))


def _span(seconds: float) -> str:
    if seconds >= 3_600:
        return f"{seconds / 3_600:.3g} h"
    return f"{seconds / 60:.3g} min" if seconds >= 60 else f"{seconds:.3g} s"
