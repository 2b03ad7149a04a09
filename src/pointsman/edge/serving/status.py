"""The status document of the admin port: what `pointsman status` shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import msgspec

from pointsman import __version__
from pointsman.core.ledger.faults import FaultSnapshot
from pointsman.core.ledger.snapshot import FleetSnapshot, TimesSnapshot, WorkerSnapshot
from pointsman.core.timing.spread import PredictionError
from pointsman.edge.cluster.status import EngineStatus
from pointsman.edge.serving.drain_report import DrainReport
from pointsman.edge.serving.health_status import HealthStatus, health_status
from pointsman.edge.serving.kv_status import (
    LinksStatus,
    PassingStatus,
    TransfersStatus,
    passing_status,
    transfers_status,
)
from pointsman.edge.serving.replica_report import ReplicasReport
from pointsman.edge.serving.rollout_report import RolloutReport, ShadowReport
from pointsman.edge.serving.tenants.report import TenancyReport
from pointsman.edge.serving.workers.report import DiscoveryReport
from pointsman.edge.telemetry.traffic import Traffic


class KvStatus(msgspec.Struct):
    """A worker's KV events, and what they are worth."""

    state: str
    reason: str
    confidence: float
    block_size_tokens: int | None
    blocks: dict[str, int]
    """By medium."""
    orphan_blocks: int


class PredictionStatus(msgspec.Struct):
    """What predictions made before the fact were worth, over the last `samples` of them."""

    samples: int
    mape_percent: float | None
    """Mean of |predicted − actual| / actual; None before anything was predicted."""
    p50_ratio: float
    """Median of actual / predicted."""
    p90_ratio: float


class TimesStatus(msgspec.Struct):
    """What was learned of a worker's step times; the coefficients are its own: its class times its factor."""

    worker_class: str
    factor: float
    """How many times as long as its class it takes."""
    a_ms: float
    b_ms_per_sequence: float
    c_ms_per_1000_context_tokens: float
    d_ms_per_prefill_token: float
    q_ms_per_square_token: float
    overhead_ms: float
    """Fixed time of a request on its way to the engine and back."""
    intervals: float
    """That its class learned from."""
    step: PredictionStatus
    ttft: PredictionStatus


class LastFault(msgspec.Struct):
    """How the last request failed that failed at a worker."""

    fault: str
    reason: str
    ago_s: float


class WorkerStatus(msgspec.Struct):
    """One worker. Token counts are sums over finished requests whose engine reported cached tokens."""

    id: str
    url: str
    kind: str
    models: list[str]
    state: str
    reason: str
    running: int
    foreign: int
    """Sequences of nobody that we know, from the engine's own metrics."""
    queued: int
    kv_use: float | None
    kv_capacity_tokens: int | None
    requests_total: int
    failed_total: int
    cancelled_total: int
    cached_share: float | None
    """Reported cached tokens of reported prompt tokens; None before the engine reported any."""
    predicted_cached_tokens: int
    reported_cached_tokens: int
    drift: float | None
    """(predicted − reported cached tokens) / prompt tokens, lately."""
    drift_reason: str | None
    kv: KvStatus
    times: TimesStatus | None = None
    """None: nothing is known of them yet."""
    weight: float = 1.0
    """How much it should get, beside 1 of an ordinary one."""
    gpu_memory: float | None = None
    """Share of its GPUs' memory that is used; None: nobody says."""
    health: HealthStatus | None = None
    faults: dict[str, int] = msgspec.field(default_factory=dict)
    """Attempts that it failed, by how; also those of its earlier processes."""
    last_fault: LastFault | None = None
    """None: none has failed there."""
    migration: str = ""
    """How a stream that it broke off goes on elsewhere: token_ids, replay or none."""
    gpu_use: float | None = None
    """How busy its GPUs are, 0 to 1; None: nobody knows."""
    others: int = 0
    """Requests of other front ends of this fleet, as they told."""
    role: str = "both"
    """prefill, decode or both."""
    role_ordered: bool = False
    """By an order at run time."""
    passing: PassingStatus | None = None
    """What it has to do with KV of others; None: asked of an older front end."""


class EngineReport(msgspec.Struct):
    """One engine as probing found it, also one that never answered and so has no worker."""

    name: str
    url: str
    state: str
    reason: str
    description: str | None
    """What was found out by asking it."""
    load_unknown: str | None
    gpu_unknown: str | None = None
    """Why it is not known how busy its GPUs are, where `gpu_metrics_url` is given."""


class RequestStatus(msgspec.Struct):
    """Requests of this front end."""

    running: int
    waiting: int
    finished_total: int
    failed_total: int
    cancelled_total: int
    retries_total: int
    missing_usage_total: int
    ttft_mean_ms: float | None
    cached_share: float | None
    migrations_total: int = 0
    """Streams that went on at another worker, each time counted."""


class RefusedPair(msgspec.Struct):
    """Two engines of one model, of which the first one should compute prompts for the second one, and can't."""

    prefill: str
    decode: str
    reason: str


class Status(msgspec.Struct):
    """Everything that a person asks first."""

    version: str
    policy: str
    policy_in_force: str
    models: dict[str, list[str]]
    workers: list[WorkerStatus]
    engines: list[EngineReport]
    requests: RequestStatus
    replicas: ReplicasReport | None = None
    """None: this front end is alone."""
    phase: str = "serving"
    """leaving, refusing or cutting while the front end stops."""
    drains: list[DrainReport] = []
    discovery: DiscoveryReport | None = None
    """Where engines are found; None: asked of an older front end."""
    tenants: TenancyReport | None = None
    """Keys and limits; None: there are none."""
    certificate_faults: list[str] = []
    """What is wrong with files of certificates as they are now; what was read before holds."""
    rollout: RolloutReport | None = None
    shadows: list[ShadowReport] = []
    kv_pairs_refused: list[RefusedPair] = []
    transfers: TransfersStatus | None = None
    """None: no worker passes KV on."""
    kv_links: LinksStatus | None = None
    """None: nothing was seen of any."""


def make_status(
    fleet: FleetSnapshot,
    models: dict[str, list[str]],
    engines: Iterable[EngineStatus],
    traffic: Traffic,
    policy: str,
    policy_in_force: str,
    now_ms: float,
) -> Status:
    """The document from the ledger's snapshot and the traffic's counters."""
    totals = fleet.totals
    return Status(
        version=__version__,
        policy=policy,
        policy_in_force=policy_in_force,
        models=models,
        workers=[_worker(worker, now_ms) for worker in fleet.workers],
        engines=[_engine(engine) for engine in engines],
        requests=RequestStatus(
            running=fleet.running,
            waiting=fleet.waiting,
            finished_total=totals.finished,
            failed_total=totals.failed,
            cancelled_total=totals.cancelled,
            retries_total=sum(traffic.retries.values()),
            migrations_total=sum(n for (_, outcome), n in traffic.migrations.items() if outcome == "begun"),
            missing_usage_total=traffic.missing_usage,
            ttft_mean_ms=1000 * traffic.ttft_s.sum / traffic.ttft_s.count if traffic.ttft_s.count else None,
            cached_share=_share(totals.reported_cached_tokens, totals.reported_prompt_tokens),
        ),
        transfers=transfers_status(fleet),
    )


def _worker(worker: WorkerSnapshot, now_ms: float) -> WorkerStatus:
    totals = worker.totals
    return WorkerStatus(
        id=worker.id,
        url=str(worker.spec.url),
        kind=worker.spec.kind,
        models=list(worker.spec.models),
        state=worker.state,
        reason=worker.reason,
        running=worker.running,
        foreign=worker.foreign,
        queued=worker.queued,
        kv_use=worker.kv_use,
        kv_capacity_tokens=worker.kv_capacity_tokens or None,
        requests_total=totals.dispatched,
        failed_total=totals.failed + totals.attempts_failed,
        faults={fault.value: count for fault, count in worker.faults.counts.items()},
        last_fault=_last_fault(worker.faults, now_ms),
        cancelled_total=totals.cancelled,
        cached_share=_share(totals.reported_cached_tokens, totals.reported_prompt_tokens),
        predicted_cached_tokens=totals.predicted_cached_tokens,
        reported_cached_tokens=totals.reported_cached_tokens,
        drift=worker.drift,
        drift_reason=worker.drift_reason,
        kv=KvStatus(
            state=str(worker.kv.state),
            reason=worker.kv.reason,
            confidence=worker.kv.confidence,
            block_size_tokens=worker.kv.block_size_tokens,
            blocks=worker.kv.blocks,
            orphan_blocks=worker.kv.orphan_blocks,
        ),
        times=None if worker.times is None else _times(worker.times),
        weight=worker.spec.weight,
        migration=worker.spec.migration.value,
        gpu_use=worker.gpu_use,
        gpu_memory=worker.gpu_memory,
        health=health_status(worker.health, now_ms),
        others=worker.others.requests,
        role=str(worker.spec.role),
        role_ordered=worker.role_ordered,
        passing=passing_status(worker),
    )


def _last_fault(faults: FaultSnapshot, now_ms: float) -> LastFault | None:
    if faults.last is None:
        return None
    return LastFault(faults.last.value, faults.reason, round(max(0.0, now_ms - faults.at_ms) / 1000.0, 1))


def _times(times: TimesSnapshot) -> TimesStatus:
    return TimesStatus(
        worker_class=times.worker_class,
        factor=times.factor,
        overhead_ms=times.overhead_ms,
        intervals=times.intervals,
        step=_prediction(times.step_error),
        ttft=_prediction(times.ttft_error),
        **dataclasses.asdict(times.step),
    )


def _prediction(error: PredictionError) -> PredictionStatus:
    return PredictionStatus(error.samples, error.mape, error.p50_ratio, error.p90_ratio)


def _engine(engine: EngineStatus) -> EngineReport:
    return EngineReport(
        name=engine.name,
        url=str(engine.url),
        state=str(engine.state),
        reason=engine.reason,
        description=engine.facts.describe() if engine.facts else None,
        load_unknown=engine.load_unknown,
        gpu_unknown=engine.gpu_unknown,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
