"""The page: what came of it in one line, the numbers, the charts, and how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jinja2 import Template
from markupsafe import Markup

import pointsman
from pointsman.app.charts.svg import COLOURS
from pointsman.app.charts.template import page_template
from pointsman.app.placements.report.charts import Chart, charts_of
from pointsman.app.placements.simulation.outcome import MEASURES, Measure, Outcome

Runs = Mapping[str, Sequence[Outcome]]
"""Of each scheduler, by its name: a run for every seed, in the same order of seeds."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was simulated."""

    title: str
    nodes: int
    gpus: int
    hours: float
    load: float
    levels: Sequence[str]
    """Near to far."""
    more: Sequence[tuple[str, str]] = ()
    """Further facts: name and value."""


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    interval: str
    best: bool


def cluster_report(facts: Facts, runs: Runs) -> str:
    """One self-contained HTML file. Several schedulers are set side by side; the first one is the one it is about."""
    labels = list(runs)
    seeds = len(runs[labels[0]])
    return _template().render(
        version=pointsman.__version__,
        facts=facts,
        headline=headline(runs),
        sentences=sentences(runs),
        labels=[(label, at % COLOURS) for at, label in enumerate(labels)],
        rows=[(measure.title, measure.meaning, _cells(key, measure, runs)) for key, measure in MEASURES.items()],
        charts=[_marked(chart) for chart in charts_of(facts.levels, runs)],
        gangs=[outcome.gangs for outcome in runs[labels[0]]],
        seeds=seeds,
    )


def headline(runs: Runs) -> str:
    """In one line."""
    label = next(iter(runs))
    placed, gangs = (sum(getattr(run, name) for run in runs[label]) for name in ("placed", "gangs"))
    if not gangs:
        return "No gang came"
    return f"{placed:,} of {gangs:,} gangs were placed whole"


def sentences(runs: Runs) -> list[str]:
    """What is worth knowing first."""
    first, *others = runs
    if not any(run.gangs for run in runs[first]):
        return []
    found = []
    partial_s = sum(run.partial_gang_s for run in runs[first])
    if partial_s:
        found.append(f"With {first}, gangs held a part of themselves for {partial_s / 3_600:,.1f} hours together.")
    else:
        found.append(f"With {first}, no gang ever held a part of itself.")
    for label in others:
        partial_h = sum(run.partial_gang_s for run in runs[label]) / 3_600
        stuck = sum(run.stuck for run in runs[label])
        if partial_h:
            idle = _mean("idle_partial_share", runs[label])
            held = f"{stuck} were in parts at the end" if stuck else "none was in parts at the end"
            found.append(
                f"With {label} they did for {partial_h:,.1f} hours; {100 * idle:.1f} % of the GPUs stood idle in such "
                f"parts, and {held}."
            )
    return found


def shown(measure: Measure, value: float) -> str:
    """A number as people read it."""
    if math.isnan(value):
        return "–"
    if measure.unit == "share":
        return f"{100 * value:.1f} %"
    if measure.unit == "seconds":
        return f"{value / 3_600:,.1f} h" if value >= 7_200 else f"{value:,.0f} s"
    return f"{value:,.1f} h" if measure.unit == "hours" else f"{value:,.4g}"


def _mean(key: str, outcomes: Sequence[Outcome]) -> float:
    values = [outcome.metrics[key] for outcome in outcomes]
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _cells(key: str, measure: Measure, runs: Runs) -> list[_Cell]:
    means = [_mean(key, outcomes) for outcomes in runs.values()]
    texts = [shown(measure, mean) for mean in means]
    known = [mean for mean in means if not math.isnan(mean)]
    best = None
    if measure.less_is_better is not None and len(set(texts)) > 1:
        best = shown(measure, (min if measure.less_is_better else max)(known))
    cells = []
    for text, outcomes in zip(texts, runs.values(), strict=True):
        values = [outcome.metrics[key] for outcome in outcomes if not math.isnan(outcome.metrics[key])]
        interval = f"{shown(measure, min(values))} to {shown(measure, max(values))}" if len(values) > 1 else ""
        cells.append(_Cell(text, interval, text == best))
    return cells


def _marked(chart: Chart) -> tuple[str, str, Markup]:
    # The charts escape what they show themselves.
    return chart.title, chart.caption, Markup(chart.svg)


@cache
def _template() -> Template:
    return page_template("pointsman.app.placements.report", "page.html.j2")
