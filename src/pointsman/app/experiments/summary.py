"""Summary: the results of an experiment as one document, for JSON, tables and reports alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from pointsman import __version__
from pointsman.app.experiments.comparison import Comparison, compare
from pointsman.app.experiments.conduct import GOODPUT_TARGET, Results
from pointsman.app.experiments.measures import MEASURES
from pointsman.app.experiments.plan import Point
from pointsman.app.experiments.statistics import CONFIDENCE, interval
from pointsman.app.experiments.verdict import WITH_SLO, WITHOUT_SLO, leader, sentences
from pointsman.app.experiments.workload import requests_s

SCHEMA = 1


class Value(msgspec.Struct, frozen=True):
    """A measure over the seeds: mean (geometric for positive measures) and its 95 % interval, null with one seed."""

    value: float
    low: float | None = None
    high: float | None = None


class RunSummary(msgspec.Struct, frozen=True):
    """One simulation."""

    seed: int
    metrics: dict[str, float | None]


class PolicySummary(msgspec.Struct, frozen=True):
    """One policy at one point."""

    policy: str
    metrics: dict[str, Value | None]
    saturated: bool
    """In most runs the queue still grew when the last requests came."""
    runs: list[RunSummary]


class ComparisonSummary(msgspec.Struct, frozen=True):
    """`first` against `second`: `ratio − 1` for positive measures, difference for shares and counts.

    p values are corrected over the comparisons of this point.
    """

    first: str
    second: str
    measure: str
    difference: float
    low: float | None
    high: float | None
    p_corrected: float
    significant: bool
    better: str | None
    """The better policy; null when the difference is not significant."""


class PointSummary(msgspec.Struct, frozen=True):
    """All policies on one fleet under one load."""

    name: str
    value: float
    workers: int
    gpus: int
    fleet: str
    rate: float
    clients: int | None
    policies: list[PolicySummary]
    comparisons: list[ComparisonSummary]
    leader: str | None
    verdict: list[str]


class KneeSummary(msgspec.Struct, frozen=True):
    """Where a policy's goodput ends."""

    policy: str
    value: float | None
    beyond: float | None
    text: str


class SweepSummary(msgspec.Struct, frozen=True):
    """The axis that points differ on, and the knees."""

    axis: str
    unit: str
    target: float
    knees: list[KneeSummary]


class WorkloadSummary(msgspec.Struct, frozen=True):
    """The traffic under seed 0."""

    name: str
    source: str
    requests: int
    duration_s: float
    requests_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float


class Summary(msgspec.Struct, frozen=True):
    """The whole document. Nothing in it depends on when or in how many processes it was made."""

    schema: int
    version: str
    workload: WorkloadSummary
    seeds: int
    slo: str | None
    step_noise: float
    confidence: float
    measures: dict[str, str]
    """What each measure means."""
    points: list[PointSummary]
    sweep: SweepSummary | None
    missing: list[str]
    """Runs that were not finished, in words."""
    notes: list[str]


def summarize(results: Results, target: float = GOODPUT_TARGET, notes: Sequence[str] = ()) -> Summary:
    """Statistics, comparisons and verdicts of results; `notes` are added as they are."""
    experiment = results.experiment
    keys = WITHOUT_SLO if experiment.slo is None else WITH_SLO
    trace = experiment.workload.trace(0)
    count = max(len(trace), 1)
    return Summary(
        schema=SCHEMA,
        version=__version__,
        workload=WorkloadSummary(
            name=experiment.workload.name,
            source=trace.source,
            requests=len(trace),
            duration_s=trace.duration_ms / 1_000,
            requests_s=requests_s(trace),
            prompt_tokens_mean=sum(request.prompt_tokens for request in trace.requests) / count,
            output_tokens_mean=sum(request.output_tokens for request in trace.requests) / count,
        ),
        seeds=experiment.seeds,
        slo=None if experiment.slo is None else str(experiment.slo),
        step_noise=experiment.points[0].setup.step_noise,
        confidence=CONFIDENCE,
        measures={key: measure.meaning for key, measure in MEASURES.items()},
        points=[_point(results, number, keys) for number in range(len(experiment.points))],
        sweep=_sweep(results, target),
        missing=missing_in_words(results),
        notes=list(notes),
    )


def missing_in_words(results: Results) -> list[str]:
    """For example `kv: seeds 3, 4` or `workers=8, kv: all 5 seeds`."""
    experiment = results.experiment
    by_place: dict[tuple[int, int], list[int]] = {}
    for run in results.missing():
        by_place.setdefault((run.point, run.entry), []).append(run.seed)
    said = []
    for (point, entry), seeds in sorted(by_place.items()):
        name = experiment.points[point].name
        label = experiment.entries[entry].label
        which = (
            f"all {len(seeds)} seeds" if len(seeds) == experiment.seeds > 1 else f"seeds {', '.join(map(str, seeds))}"
        )
        which = "its run" if experiment.seeds == 1 else which.replace("seeds", "seed") if len(seeds) == 1 else which
        said.append(f"{f'{name}, ' if name else ''}{label}: {which}")
    return said


def fleet_text(point: Point) -> str:
    """For example `16 × h100/llama-8b`, or `4 × a (prefill) + 12 × b (decode)`."""
    parts = []
    for group in point.setup.groups:
        role = "" if group.role == "both" else f" ({group.role.value})"
        parts.append(f"{group.count} × {group.profile.name}{role}")
    return " + ".join(parts)


def _point(results: Results, number: int, keys: Sequence[str]) -> PointSummary:
    point, metrics = results.experiment.points[number], results.metrics(number)
    comparisons = compare(metrics, keys)
    finished = {label: runs for label, runs in metrics.items() if runs}
    return PointSummary(
        name=point.name,
        value=point.value,
        workers=point.setup.workers,
        gpus=sum(group.count * group.profile.tensor_parallel for group in point.setup.groups),
        fleet=fleet_text(point),
        rate=point.rate,
        clients=point.clients,
        policies=[
            PolicySummary(
                policy=label,
                metrics={key: _value([run[key] for run in runs.values()], key) for key in MEASURES},
                saturated=2 * sum(run["saturated"] for run in runs.values()) > len(runs),
                runs=[RunSummary(seed, _finite(runs[seed])) for seed in sorted(runs)],
            )
            for label, runs in finished.items()
        ],
        comparisons=[_comparison(each) for each in comparisons],
        leader=leader(finished, comparisons, keys) if finished else None,
        verdict=sentences(metrics, comparisons, keys),
    )


def _value(values: list[float], key: str) -> Value | None:
    found = interval(values, MEASURES[key].kind)
    return None if found is None else Value(found.value, found.low, found.high)


def _finite(metrics: object) -> dict[str, float | None]:
    assert isinstance(metrics, dict)
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def _comparison(each: Comparison) -> ComparisonSummary:
    apart = each.difference
    better = (each.first if each.first_is_better else each.second) if each.significant else None
    return ComparisonSummary(
        each.first,
        each.second,
        each.key,
        apart.value,
        apart.low,
        apart.high,
        each.p_corrected,
        each.significant,
        better,
    )


def _sweep(results: Results, target: float) -> SweepSummary | None:
    sweep = results.sweep
    if sweep is None:
        return None
    knees = []
    for label, found in results.knees(target).items():
        text = _knee_text(label, found.value, found.beyond, sweep.unit, target, less_is_harder=sweep.less_is_harder)
        knees.append(KneeSummary(label, found.value, found.beyond, text))
    return SweepSummary(sweep.axis, sweep.unit, target, knees)


def _knee_text(
    label: str, value: float | None, beyond: float | None, unit: str, target: float, *, less_is_harder: bool
) -> str:
    share = f"{100 * target:g} % of requests within the SLO"
    if value is None:
        return f"{label} does not keep {share} at any point" + (f", not even {_of(beyond, unit)}." if beyond else ".")
    if beyond is None:
        return f"{label} keeps {share} at every point, the hardest being {_of(value, unit)}."
    if less_is_harder:
        return f"{label} needs {_of(value, unit)} for {share}; {_of(beyond, unit)} would be too few."
    return f"{label} keeps {share} up to {_of(value, unit)}; {_of(beyond, unit)} is too much."


def _of(value: float, unit: str) -> str:
    return f"{value:g} {unit.removesuffix('s') if value == 1 and unit in ('workers', 'clients') else unit}"
