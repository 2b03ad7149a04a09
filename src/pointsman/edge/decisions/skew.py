"""Whether the load of workers is uneven, and why: for each model a report with evidence.

A cause is named only where it works in the direction of what is seen: it must have brought requests to the busiest
worker, or kept them from those that got too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.shares import WORTH_RATIO, Shares, Skew, median_itl_ms, shares
from pointsman.edge.decisions.skew_causes import SkewCause, causes_of
from pointsman.edge.decisions.words import count, percent
from pointsman.edge.telemetry.decision_row import DecisionRow

FEWEST_A_WORKER = 5
"""Requests a worker below which nothing can be told."""


class WorkerShare(msgspec.Struct):
    """One worker's part of a model's requests."""

    worker: str
    requests: int
    share: float
    fair_share: float
    busy_ms: float
    cached_share: float | None
    itl_p50_ms: float | None


class Unevenness(msgspec.Struct, frozen=True):
    """Of the busiest and the idlest worker, over their fair shares; beside what random dealing gives.

    `…_by_chance`: only one in twenty deals exceeds it. `…_chance`: share of the deals that are as uneven.
    """

    most: float = 1.0
    most_by_chance: float = 1.0
    most_chance: float = 1.0
    least: float = 1.0
    least_by_chance: float = 1.0
    least_chance: float = 1.0


class SkewReport(msgspec.Struct):
    """Of one model."""

    model: str
    requests: int
    verdict: str
    """too_few, one_worker, even, skewed."""
    sentence: str
    workers: list[WorkerShare] = []
    by_requests: Unevenness = Unevenness()
    by_time: Unevenness = Unevenness()
    """Of the time that requests spent at the workers."""
    causes: list[SkewCause] = []
    """The strongest first; none for load that is skewed and not explained."""


def skew(rows: Iterable[DecisionRow], facts: Mapping[str, Mapping[str, WorkerFacts]]) -> list[SkewReport]:
    """A report for each model, the busiest first.

    Args:
        rows: decisions of all front ends that belong together, in any order.
        facts: by model and worker.
    """
    models: dict[str, list[DecisionRow]] = {}
    for row in rows:
        models.setdefault(row.model, []).append(row)
    reports = [_report(model, its, facts.get(model, {})) for model, its in models.items()]
    return sorted(reports, key=lambda report: (-report.requests, report.model))


def _report(model: str, rows: list[DecisionRow], facts: Mapping[str, WorkerFacts]) -> SkewReport:
    dealt = shares(rows, facts)
    total, workers = len(dealt.rows), len(dealt.workers)
    report = SkewReport(model, total, "", "", _worker_shares(dealt))
    by_requests, by_time = dealt.by_requests, dealt.by_time
    report.by_requests, report.by_time = _rounded(by_requests), _rounded(by_time)
    if workers < 2:
        report.verdict = "one_worker"
        report.sentence = f"{model}: {count(workers, 'workers')}, so there is nobody to share its load with"
    elif total < FEWEST_A_WORKER * workers:
        report.verdict = "too_few"
        are = "is" if total == 1 else "are"
        report.sentence = (
            f"{model}: {count(total, 'requests')} {are} too few for {workers} workers to tell an imbalance from "
            f"chance; ask again after {FEWEST_A_WORKER * workers}"
        )
    elif not by_requests.is_skewed and not by_time.is_skewed:
        report.verdict = "even"
        report.sentence = f"{model}: no imbalance beyond chance: {_told(dealt, by_requests, 'requests')}"
    else:
        report.verdict = "skewed"
        report.causes = causes_of(dealt, facts)
        report.sentence = _skewed_sentence(model, dealt, report.causes)
    return report


def _skewed_sentence(model: str, dealt: Shares, causes: list[SkewCause]) -> str:
    uneven = dealt.by_requests.is_skewed
    told = _told(dealt, dealt.by_requests if uneven else dealt.by_time, "requests" if uneven else "time")
    why = "; ".join(cause.text for cause in causes) or (
        "no cause that can be told from decisions: route keys, metrics, prefixes and workers look alike"
    )
    return f"{model}: uneven, and not by chance: {told}. {why}"


def _told(dealt: Shares, skewed: Skew, what: str) -> str:
    loads = dealt.requests if what == "requests" else dealt.busy_ms
    over = loads / dealt.fair.clip(1e-9)
    of = f"{len(dealt.rows):,} requests" if what == "requests" else f"the time that {len(dealt.rows):,} requests took"
    little = skewed.too_little and not skewed.too_much
    who = int(over.argmin() if little else over.argmax())
    ratio, bound = (skewed.least, skewed.least_by_chance) if little else (skewed.most, skewed.most_by_chance)
    told = (
        f"{dealt.workers[who]} got {percent(float(loads[who] / max(1e-9, loads.sum())))} of {of}, {ratio:.2f} times "
        f"its share among {len(dealt.workers)} workers, "
    )
    if ratio > bound and not skewed.is_skewed:
        if skewed.most < WORTH_RATIO:
            return told + f"which is more than random dealing gives ({bound:.2f}), but too little to matter"
        return told + f"which {100 * skewed.most_chance:.1f} % of random deals reach, too"
    return told + f"where random dealing gives {'down' if little else 'up'} to {bound:.2f}"


def _worker_shares(dealt: Shares) -> list[WorkerShare]:
    made = []
    for number, worker in enumerate(dealt.workers):
        its = [row for row in dealt.rows if row.worker == worker]
        # Of a prompt that another worker computed it is that one's cache that was found to hold some of it.
        reported = [row for row in its if row.cached_reported is not None and row.prefill_worker is None]
        prompts = sum(row.prompt_tokens for row in reported)
        cached = sum(row.cached_reported or 0 for row in reported)
        made.append(
            WorkerShare(
                worker=worker,
                requests=len(its),
                share=round(len(its) / max(1, len(dealt.rows)), 4),
                fair_share=round(float(dealt.fair[number]), 4),
                busy_ms=round(float(dealt.busy_ms[number]), 1),
                cached_share=round(cached / prompts, 4) if prompts else None,
                itl_p50_ms=median_itl_ms(its, worker),
            )
        )
    return made


def _rounded(one: Skew) -> Unevenness:
    return Unevenness(
        round(one.most, 3),
        round(one.most_by_chance, 3),
        round(one.most_chance, 4),
        round(one.least, 3),
        round(one.least_by_chance, 3),
        round(one.least_chance, 4),
    )
