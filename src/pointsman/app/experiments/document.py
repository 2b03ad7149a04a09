"""The document that an experiment gives, for JSON, tables and reports alike."""

from __future__ import annotations

import msgspec

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
    """How many times as fast conversations begin as the workload has them."""
    requests_s: float
    """Arrivals a second under seed 0, as the trace has them. In a closed loop they are what the fleet makes of it."""
    clients: int | None
    policies: list[PolicySummary]
    comparisons: list[ComparisonSummary]
    leader: str | None
    verdict: list[str]


class KneeSummary(msgspec.Struct, frozen=True):
    """Where a policy's goodput ends; of a sweep of roles, where it does best."""

    policy: str
    value: float | None
    beyond: float | None
    """The next harder value tried, where it fails; null: there is none."""
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
