"""What the ledger shows of its state, for people and metrics. Plain values, safe to keep."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.ledger.entries import Totals
from pointsman.core.model.worker import WorkerId, WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker as it stands now."""

    id: WorkerId
    spec: WorkerSpec
    state: str
    """ready, draining, or why it is excluded."""
    usable: bool
    reason: str
    running: int
    foreign: int
    queued: int
    prefill_tokens: int
    kv_tokens: int
    kv_capacity_tokens: int
    kv_use: float | None
    indexed_blocks: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """The whole fleet as it stands now."""

    workers: tuple[WorkerSnapshot, ...]
    waiting: int
    """Admitted, not dispatched."""
    running: int
    indexed_blocks: int
    totals: Totals
    """Of all requests, also those whose worker is gone; `dispatched` counts attempts."""
    bytes_per_token: dict[str, float]
