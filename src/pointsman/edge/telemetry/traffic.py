"""Traffic: what the front end counts of the requests that it served. The ledger counts what decisions need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pointsman.edge.telemetry.histogram import (
    DECISION_BUCKETS_S,
    DURATION_BUCKETS_S,
    ITL_BUCKETS_S,
    RATIO_BUCKETS,
    TTFT_BUCKETS_S,
    Histogram,
)


@dataclass(slots=True)
class Traffic:
    """Counters and histograms of one front end."""

    responses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(route, status sent to the client); 499 = the client left first."""
    retries: Counter[str] = field(default_factory=Counter)
    """By fault of the engine that had it before."""
    retries_refused: Counter[str] = field(default_factory=Counter)
    """Requests that an engine failed and that were not sent again, by reason: see NoRetry in serving/retries."""
    migrations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(mechanism, outcome) of streams that went on elsewhere."""
    migrations_refused: Counter[str] = field(default_factory=Counter)
    """Streams that broke off and did not, by reason."""
    notes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(policy, what it did instead of what its name says)."""
    guards_lifted: int = 0
    """Decisions in which a guard would have left no worker."""
    stream_errors: Counter[str] = field(default_factory=Counter)
    """Streams with a defect, by which: see Defect in serving/attempt."""
    missing_usage: int = 0
    """Finished answers in which the engine reported no usage."""
    transfers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, outcome) of requests whose KV was moved between engines, or was to be: see serving/legs."""
    transfer_fallbacks: Counter[str] = field(default_factory=Counter)
    """Requests whose KV was to be moved and was not, by reason: see serving/legs/why."""
    kv_left_alone: Counter[str] = field(default_factory=Counter)
    """Times that a worker's KV was left alone for a while, by side: gives, takes."""
    transfer_bytes: int = 0
    """Moved, as engines told."""
    transfer_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    """What moving took, as engines told."""
    transfer_saved_ms: float = 0.0
    """First tokens sooner than predicted without moving KV; see DecisionRecord.saved_ms."""
    transfer_lost_ms: float = 0.0
    """Later than that."""
    ttft_s: Histogram = field(default_factory=lambda: Histogram(TTFT_BUCKETS_S))
    itl_s: Histogram = field(default_factory=lambda: Histogram(ITL_BUCKETS_S))
    """Mean time between the events of one stream, one observation a stream."""
    duration_s: Histogram = field(default_factory=lambda: Histogram(DURATION_BUCKETS_S))
    decision_s: Histogram = field(default_factory=lambda: Histogram(DECISION_BUCKETS_S))
    ttft_ratio: Histogram = field(default_factory=lambda: Histogram(RATIO_BUCKETS))
    """Observed over predicted, from the decision to the first token."""
    tpot_ratio: Histogram = field(default_factory=lambda: Histogram(RATIO_BUCKETS))
    """The same of the mean time between tokens."""
