"""The charts of a report, from the results of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.app.charts.axis import (
    Axis,
    Show,
    axis_over,
    show_ms,
    show_number,
    show_seconds,
    show_share,
)
from pointsman.app.charts.svg import COLOURS, Bar, Mark, Series, bar_chart, columns, line_chart
from pointsman.app.experiments.conduct import Results
from pointsman.app.experiments.curves import QUANTILES, Curves, mean_curves
from pointsman.app.experiments.document import PointSummary, Summary
from pointsman.app.experiments.measures import MEASURES, Unit, shown

_MOST_LOADED = 64
"""Workers whose load is drawn each by itself; of more, the quantiles are."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One figure of the page."""

    title: str
    caption: str
    svg: str


def detail_charts(summary: Summary, results: Results, point: int) -> Iterator[Chart]:
    """Those of one fleet under one load."""
    at = summary.points[point]
    curves: dict[str, Curves] = {}
    for number, entry in enumerate(results.experiment.entries):
        several = results.curves(point, number)
        if several:
            curves[entry.label] = mean_curves(several)
    if not curves:
        return
    slo = results.experiment.slo
    limit_ms = None if slo is None else slo.ttft_ms
    if summary.slo is not None:
        yield _misses(at, summary.slo)
    else:
        yield _bars(at, "tpot_mean_ms", "Mean TPOT", "Time between the tokens of an answer. Whiskers: 95 % confidence.")
    yield _bars(at, "ttft_p99_ms", "P99 TTFT", "One request in a hundred waits longer. Whiskers: 95 % confidence.")
    yield _distribution(curves, limit_ms)
    yield _over_time(curves, limit_ms)
    yield _load(curves, at)
    yield _bars(at, "hit_share", "Prompt tokens found cached", "Share of all prompt tokens; whiskers: 95 % confidence.")


def sweep_charts(summary: Summary) -> Iterator[Chart]:
    """Those of a sweep along its axis."""
    sweep = summary.sweep
    if sweep is None or len(summary.points) < 2:
        return
    if summary.slo is not None:
        marks = [
            Mark(f"{knee.policy}: {knee.value:g}", x=knee.value, colour=_colour(number))
            for number, knee in enumerate(sweep.knees)
            if knee.value is not None and knee.beyond is not None
        ]
        target = Mark(f"{100 * sweep.target:g} %", y=sweep.target)
        caption = f"Share of all requests. SLO: {summary.slo}."
        if sweep.knees:
            caption += " Upright lines: the hardest point tried that still keeps it."
        yield _sweep_chart(summary, "goodput_share", "Requests within the SLO", caption, [target, *_apart(marks)])
    yield _sweep_chart(summary, "ttft_p99_ms", "P99 TTFT", "Logarithmic. Bands: 95 % confidence.", log=True)
    yield _sweep_chart(summary, "tpot_mean_ms", "Mean TPOT", "Time between the tokens of an answer.")
    yield _sweep_chart(summary, "output_tokens_s_gpu", "Output a GPU", "Tokens answered a second and GPU.")


def _colour(number: int) -> int:
    return number % COLOURS


def _bars(point: PointSummary, key: str, title: str, caption: str) -> Chart:
    measure = MEASURES[key]
    bars = []
    for number, policy in enumerate(point.policies):
        found = policy.metrics[key]
        bars.append(
            Bar(
                policy.policy,
                _colour(number),
                math.nan if found is None else found.value,
                shown(key, None if found is None else found.value),
                None if found is None else found.low,
                None if found is None else found.high,
            )
        )
    highs = [bar.high if bar.high is not None else bar.value for bar in bars]
    axis = axis_over(highs, measure.title, show=_show(key))
    return Chart(title, caption, bar_chart(title, axis, bars))


def _misses(point: PointSummary, slo: str) -> Chart:
    """Where nearly all requests are good, those that are not show the difference."""
    bars = []
    for number, policy in enumerate(point.policies):
        found = policy.metrics["goodput_share"]
        missed = math.nan if found is None else 1 - found.value
        low, high = (
            (None, None) if found is None or found.low is None or found.high is None else (found.low, found.high)
        )
        bars.append(
            Bar(
                policy.policy,
                _colour(number),
                missed,
                shown("goodput_share", missed),
                None if high is None else 1 - high,
                None if low is None else 1 - low,
            )
        )
    highest = max((bar.high or bar.value for bar in bars if math.isfinite(bar.value)), default=1.0)
    axis = Axis("of all requests", 0.0, min(1.0, max(1.06 * highest, 0.01)), show=show_share)
    caption = f"Failed ones included. SLO: {slo.replace(',', ', ')}."
    return Chart("Requests that miss the SLO", caption, bar_chart("Requests that miss the SLO", axis, bars))


def _distribution(curves: dict[str, Curves], limit_ms: float | None) -> Chart:
    """Share of requests by TTFT; the upper end stretched, because that is what P99s are about."""
    x = axis_over((value for each in curves.values() for value in each.ttft_ms), "TTFT", log=True, show=show_ms)
    y = Axis("requests", 1.0, 0.002, log=True, show=lambda rest: show_share(1 - rest), wanted_ticks=_RESTS)
    series = []
    for number, (label, each) in enumerate(curves.items()):
        points = [(ttft_ms, max(1 - share, 0.002)) for ttft_ms, share in zip(each.ttft_ms, QUANTILES, strict=False)]
        hints = [
            f"{label}: {100 * share:.4g} % of requests within {shown('ttft_p99_ms', ttft_ms)}"
            for ttft_ms, share in zip(each.ttft_ms, QUANTILES, strict=False)
        ]
        series.append(Series(label, _colour(number), points[:-1], hints=hints[:-1]))
    marks = [] if limit_ms is None else [Mark(f"SLO {show_ms(limit_ms)}", x=limit_ms)]
    svg = line_chart("TTFT distribution", x, y, series, marks=marks)
    return Chart(
        "How long the first token takes", "Share of requests that have it by then; both axes logarithmic.", svg
    )


_RESTS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)


def _over_time(curves: dict[str, Curves], limit_ms: float | None) -> Chart:
    values = [value for each in curves.values() for value in each.ttft_p90_ms if math.isfinite(value)]
    wide = bool(values) and max(values) > 20 * max(min(values), 1e-9)
    y = axis_over(values, "P90 TTFT", log=wide, show=show_ms)
    spans = [at_ms / 1_000 for each in curves.values() for at_ms in each.bins_ms]
    # All at once is one moment, not a span of parts of nothing.
    x = Axis("time in the trace", 0.0, max([1.0, *spans]), show=show_seconds)
    if x.high >= 120:
        x = Axis(x.title, 0.0, x.high, show=show_seconds, wanted_ticks=_minutes(x.high))
    series = [
        Series(
            label,
            _colour(number),
            [(at_ms / 1_000, value) for at_ms, value in zip(each.bins_ms, each.ttft_p90_ms, strict=True)],
            hints=[
                f"{label}, {show_seconds(round(at_ms / 1_000))} in: {shown('ttft_p90_ms', value)}"
                for at_ms, value in zip(each.bins_ms, each.ttft_p90_ms, strict=True)
            ],
        )
        for number, (label, each) in enumerate(curves.items())
    ]
    marks = [] if limit_ms is None else [Mark(f"SLO {show_ms(limit_ms)}", y=limit_ms)]
    svg = line_chart("TTFT over time", x, y, series, marks=marks)
    caption = "P90 by time of arrival. If it keeps rising, the fleet is too small."
    return Chart("TTFT over time", caption, svg)


def _minutes(seconds: float) -> tuple[float, ...]:
    step = next((each for each in (30, 60, 120, 300, 600, 1_800, 3_600) if seconds / each <= 6.5), 7_200)
    return tuple(float(each) for each in range(0, int(seconds) + 1, step))


def _load(curves: dict[str, Curves], point: PointSummary) -> Chart:
    rows: list[tuple[str, int, Sequence[float]]] = []
    names = [f"worker {number}" for number in range(point.workers)]
    for number, (label, each) in enumerate(curves.items()):
        rows.append((label, _colour(number), each.busy_share))
    if point.workers > _MOST_LOADED:
        names = [f"{100 * part // _MOST_LOADED} % of the workers" for part in range(_MOST_LOADED)]
        rows = [(label, colour, _thinned(values)) for label, colour, values in rows]
    y = Axis("workers", 0.0, 1.0, show=show_share)
    svg = columns("Load of each worker", y, rows, names)
    return Chart("Load of each worker", "Share of the time in which it computed.", svg)


def _thinned(values: Sequence[float]) -> list[float]:
    ordered = sorted(values, reverse=True)
    return [ordered[int(part * len(ordered) / _MOST_LOADED)] for part in range(_MOST_LOADED)]


def _sweep_chart(
    summary: Summary, key: str, title: str, caption: str, marks: Sequence[Mark] = (), *, log: bool = False
) -> Chart:
    assert summary.sweep is not None
    series: dict[str, list[tuple[float, float]]] = {}
    bands: dict[str, list[tuple[float, float, float]]] = {}
    hints: dict[str, list[str]] = {}
    labels = list(dict.fromkeys(policy.policy for point in summary.points for policy in point.policies))
    for point in summary.points:
        for policy in point.policies:
            found = policy.metrics[key]
            if found is None:
                continue
            series.setdefault(policy.policy, []).append((point.value, found.value))
            hints.setdefault(policy.policy, []).append(f"{policy.policy}, {point.name}: {shown(key, found.value)}")
            if found.low is not None and found.high is not None:
                bands.setdefault(policy.policy, []).append((point.value, found.low, found.high))
    values = [value for points in series.values() for _, value in points]
    y = axis_over(values, MEASURES[key].title, log=log, show=_show(key))
    if MEASURES[key].unit is Unit.SHARE:
        # Where nothing is bad, what happens between 95 and 100 % is what the chart is for.
        low = math.floor(20 * min([*values, summary.sweep.target], default=0.0)) / 20
        y = Axis(MEASURES[key].title, low if low >= 0.5 else 0.0, 1.0, show=show_share)
    ticks = tuple(point.value for point in summary.points)
    names = {point.value: point.name.partition("=")[2] for point in summary.points}
    x = axis_over(ticks, summary.sweep.unit, from_zero=False)
    x = Axis(x.title, x.low, x.high, show=lambda value: names.get(value, f"{value:g}"), wanted_ticks=ticks)
    lines = [
        Series(label, _colour(number), series[label], bands.get(label, ()), hints[label])
        for number, label in enumerate(labels)
        if label in series
    ]
    return Chart(title, caption, line_chart(title, x, y, lines, marks=marks, dots=True))


def _apart(marks: Sequence[Mark]) -> list[Mark]:
    """Marks at the same value as one, so that their words do not lie upon each other."""
    at: dict[float | None, list[Mark]] = {}
    for mark in marks:
        at.setdefault(mark.x, []).append(mark)
    return [
        several[0]
        if len(several) == 1
        else Mark(f"{', '.join(mark.text.partition(':')[0] for mark in several)}: {x:g}", x=x)
        for x, several in at.items()
    ]


def _show(key: str) -> Show:
    unit = MEASURES[key].unit
    return show_ms if unit is Unit.MS else show_share if unit is Unit.SHARE else show_number
