"""The page: the verdict first, then the numbers, the plots, and how to read them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from jinja2 import Template
from markupsafe import Markup

from pointsman.app.charts.svg import COLOURS
from pointsman.app.charts.template import page_template
from pointsman.app.experiments.conduct import Results
from pointsman.app.experiments.detail import detail_point
from pointsman.app.experiments.document import ComparisonSummary, PointSummary, Summary, Value
from pointsman.app.experiments.measures import MEASURES, shown, spread
from pointsman.app.experiments.report.charts import Chart, detail_charts, sweep_charts
from pointsman.app.experiments.verdict import listed

HEADLINES = (
    "goodput_share",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_mean_ms",
    "e2e_p99_ms",
    "output_tokens_s",
    "hit_share",
    "busy_imbalance",
)


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    interval: str
    best: bool


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    colour: int
    leads: bool
    cells: list[_Cell]


def html_report(summary: Summary, results: Results) -> str:
    """One self-contained HTML file: no script, no font, no request to anywhere."""
    point = detail_point(summary)
    at = summary.points[point]
    keys = [key for key in HEADLINES if key != "goodput_share" or summary.slo is not None]
    return _template().render(
        summary=summary,
        at=at,
        headline=sweep_headline(summary) or headline(at),
        labels=[(entry.label, number % COLOURS) for number, entry in enumerate(results.experiment.entries)],
        titles=[MEASURES[key].title for key in keys],
        rows=_rows(at, keys),
        all_titles=[policy.policy for policy in at.policies],
        all_rows=[(MEASURES[key].title, MEASURES[key].meaning, _cells(at, key)) for key in MEASURES],
        comparisons=[(each, MEASURES[each.measure].title, _difference(each)) for each in at.comparisons],
        detail=[_marked(chart) for chart in detail_charts(summary, results, point)],
        sweeps=[_marked(chart) for chart in sweep_charts(summary)],
        sweep_rows=_sweep_rows(summary),
        shown=shown,
    )


def headline(point: PointSummary) -> str:
    """The verdict in one line."""
    labels = [policy.policy for policy in point.policies]
    if len(labels) < 2:
        return f"What {labels[0]} does here" if labels else "No run was finished"
    told = [each for each in point.comparisons if each.significant and point.leader in (each.first, each.second)]
    apart = {each.first for each in told} | {each.second for each in told}
    best = [label for label in labels if label == point.leader or label not in apart]
    others = [label for label in labels if label not in best]
    if not others:
        return "No policy is surely better here"
    verb = "does" if len(best) == 1 else "do"
    mixed = any(each.better != point.leader for each in told)
    return f"{listed(best)} {verb} better than {listed(others)} here{', not in everything' if mixed else ''}"


def sweep_headline(summary: Summary) -> str:
    """How far each policy goes, in one line; empty without knees."""
    sweep = summary.sweep
    if sweep is None or not sweep.knees:
        return ""
    if sweep.axis == "roles":
        names = {point.value: point.name.partition("=")[2] for point in summary.points}
        return listed(
            [f"{knee.policy} does best with {names[knee.value]}" for knee in sweep.knees if knee.value is not None]
        )
    share = f"{100 * sweep.target:g} % within the SLO"
    found = {knee.policy: knee.value for knee in sweep.knees}
    values = set(found.values())
    if values == {None}:
        return f"Not one point keeps {share}"
    word = "from" if sweep.axis == "workers" else "up to"
    if len(values) == 1 and len(found) > 1:
        return (
            f"{listed(list(found))} keep {share} {word} {values.pop():g} {sweep.unit}{' on' if word == 'from' else ''}"
        )
    parts: list[str] = []
    for label, value in found.items():
        reach = "nowhere" if value is None else f"{word} {value:g}{'' if parts else f' {sweep.unit}'}"
        parts.append(f"{label} {reach}" if parts else f"{label} keeps {share} {reach}")
    return ", ".join(parts)


def _rows(point: PointSummary, keys: list[str]) -> list[_Row]:
    columns = [_cells(point, key) for key in keys]
    return [
        _Row(policy.policy, number % COLOURS, policy.policy == point.leader, [column[number] for column in columns])
        for number, policy in enumerate(point.policies)
    ]


def _cells(point: PointSummary, key: str) -> list[_Cell]:
    values = [policy.metrics[key] for policy in point.policies]
    known = [value.value for value in values if value is not None]
    best = (min if MEASURES[key].less_is_better else max)(known) if len(set(known)) > 1 else None
    texts = [shown(key, None if value is None else value.value) for value in values]
    best_text = None if best is None else shown(key, best)
    return [
        _Cell(text, _interval(key, value), text == best_text and len(set(texts)) > 1)
        for text, value in zip(texts, values, strict=True)
    ]


def _interval(key: str, value: Value | None) -> str:
    return "" if value is None else spread(key, value.value, value.low, value.high)


def _difference(each: ComparisonSummary) -> str:
    kind = MEASURES[each.measure].kind.value
    unit = {"positive": " %", "share": " points"}.get(kind, "")
    scale = 100 if unit else 1
    text = f"{scale * each.difference:+.1f}{unit}"
    if each.low is None or each.high is None:
        return text
    return f"{text} ({scale * each.low:+.1f} to {scale * each.high:+.1f})"


def _sweep_rows(summary: Summary) -> list[tuple[str, str, list[str], bool]]:
    if summary.sweep is None:
        return []
    knees = {knee.policy: knee.value for knee in summary.sweep.knees}
    keys = [key for key in HEADLINES if key != "goodput_share" or summary.slo is not None]
    rows = []
    for point in summary.points:
        for policy in point.policies:
            values = [policy.metrics[key] for key in keys]
            texts = [
                shown(key, None if value is None else value.value) for key, value in zip(keys, values, strict=True)
            ]
            rows.append((point.name, policy.policy, texts, knees.get(policy.policy) == point.value))
    return rows


def _marked(chart: Chart) -> tuple[str, str, Markup]:
    # The charts escape what they show themselves.
    return chart.title, chart.caption, Markup(chart.svg)


@cache
def _template() -> Template:
    return page_template("pointsman.app.experiments.report", "page.html.j2")
