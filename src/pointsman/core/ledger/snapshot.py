"""What the ledger shows of its state, for people and metrics. Plain values, safe to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.ledger.entries import Totals
from pointsman.core.ledger.events import KvFeedState
from pointsman.core.ledger.faults import FaultSnapshot
from pointsman.core.ledger.health.snapshot import HealthSnapshot
from pointsman.core.model.replica import NO_SHARE, WorkerShare
from pointsman.core.model.worker import WorkerId, WorkerSpec
from pointsman.core.timing.spread import PredictionError
from pointsman.core.timing.step import StepCoefficients

PROMPTS_ONLY = "prefill"
"""State of a worker that is ready to compute prompts for others, and gets no whole requests."""


@dataclass(frozen=True, slots=True)
class KvSnapshot:
    """What a worker's KV events say, and what they are worth."""

    state: KvFeedState
    reason: str
    confidence: float
    block_size_tokens: int | None
    blocks: dict[str, int]
    """By medium."""
    orphan_blocks: int
    """Announced without a known parent, and not believed."""


@dataclass(frozen=True, slots=True)
class TimesSnapshot:
    """What was learned of a worker's step times."""

    worker_class: str
    """Workers of it learn together."""
    step: StepCoefficients
    """Of this worker: its class times its factor."""
    factor: float
    """How many times as long as its class it takes."""
    overhead_ms: float
    intervals: float
    """That its class learned from."""
    step_error: PredictionError
    """How far predicted step times were off, each predicted before it was learned from."""
    ttft_error: PredictionError
    """The same of times to the first token."""


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker as it stands now."""

    id: WorkerId
    spec: WorkerSpec
    state: str
    """ready, PROMPTS_ONLY, draining, or why it is excluded."""
    usable: bool
    """Whole requests may go there."""
    reason: str
    running: int
    """Requests of ours."""
    sequences: int
    """Sequences of ours: a request for n answers is n of them."""
    foreign: int
    """Sequences of nobody that we know."""
    queued: int
    prefill_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int
    kv_use: float | None
    gpu_use: float | None
    """How busy its GPUs are, 0 to 1; None: nobody knows."""
    gpu_memory: float | None
    """Share of their memory that is used, 0 to 1; None: nobody says."""
    health: HealthSnapshot
    faults: FaultSnapshot
    text_blocks: int
    """Text blocks that were sent there and may still be cached."""
    kv: KvSnapshot
    drift: float | None
    """(predicted − reported cached tokens) / prompt tokens, lately; None before enough was seen."""
    drift_reason: str | None
    exact: bool
    """Its own word is used for what it holds."""
    totals: Totals
    times: TimesSnapshot | None
    """None: nothing is known of its step times, or nobody learns."""
    transfers_out: int = 0
    """Of KV from it, under way."""
    transfers_in: int = 0
    kv_group: int = 0
    """Workers with the same number can pass KV on to each other; 0: it passes none on."""
    kv_token_bytes: int = 0
    """0: nobody knows."""
    machine: str = ""
    """That it runs on, as links have it."""
    role_ordered: bool = False
    """Its role is another one than that with which it joined, by an order at run time."""
    others: WorkerShare = NO_SHARE
    """What other front ends of the fleet have there; none of it is in the numbers above."""


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The whole fleet as it stands now."""

    workers: tuple[WorkerSnapshot, ...]
    waiting: int
    """Admitted, not dispatched."""
    running: int
    text_blocks: int
    """Distinct text blocks thought to be cached anywhere."""
    exact_blocks: int
    """Distinct token blocks that engines say they hold."""
    totals: Totals
    """Of all requests, also those whose worker is gone; `dispatched` counts attempts."""
    bytes_per_token: dict[str, float]
    others: Mapping[str, int] = field(default_factory=dict)
    """Other front ends of the fleet → requests that they have at workers, as they told last."""
