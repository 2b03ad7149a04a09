"""Summary: the results of an experiment with statistics, comparisons and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pointsman import __version__
from pointsman.app.experiments.comparison import Comparison, compare
from pointsman.app.experiments.conduct import GOODPUT_TARGET, Results
from pointsman.app.experiments.document import (
    SCHEMA,
    ComparisonSummary,
    KneeSummary,
    PointSummary,
    PolicySummary,
    RunSummary,
    Summary,
    SweepSummary,
    Value,
    WorkloadSummary,
)
from pointsman.app.experiments.knee_text import best_splits, knee_text
from pointsman.app.experiments.measures import MEASURES
from pointsman.app.experiments.plan import Point
from pointsman.app.experiments.statistics import CONFIDENCE, interval
from pointsman.app.experiments.verdict import leader, sentences, verdict_keys
from pointsman.app.experiments.workload import requests_s
from pointsman.core.workload.scale import faster


def summarize(results: Results, target: float = GOODPUT_TARGET, notes: Sequence[str] = ()) -> Summary:
    """Statistics, comparisons and verdicts of results; `notes` are added as they are."""
    experiment = results.experiment
    trace = experiment.workload.trace(0)
    rates = {point.rate: requests_s(faster(trace, point.rate)) for point in experiment.points}
    points = [_point(results, number, rates[point.rate]) for number, point in enumerate(experiment.points)]
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
        points=points,
        sweep=_sweep(results, target, points),
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


def _point(results: Results, number: int, arrivals_s: float) -> PointSummary:
    point, metrics = results.experiment.points[number], results.metrics(number)
    keys = verdict_keys(metrics, with_slo=results.experiment.slo is not None)
    comparisons = compare(metrics, keys)
    finished = {label: runs for label, runs in metrics.items() if runs}
    return PointSummary(
        name=point.name,
        value=point.value,
        workers=point.setup.workers,
        gpus=sum(group.count * group.profile.tensor_parallel for group in point.setup.groups),
        fleet=fleet_text(point),
        rate=point.rate,
        requests_s=arrivals_s,
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


def _sweep(results: Results, target: float, points: list[PointSummary]) -> SweepSummary | None:
    sweep = results.sweep
    if sweep is None:
        return None
    knees = [
        KneeSummary(label, found.value, found.beyond, knee_text(label, found, sweep, target))
        for label, found in results.knees(target).items()
    ]
    if not sweep.ordered:
        knees = best_splits(points)
    return SweepSummary(sweep.axis, sweep.unit, target, knees)
