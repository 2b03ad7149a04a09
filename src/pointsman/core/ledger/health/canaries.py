"""Which workers should get a canary: a generation of two tokens that shows whether tokens flow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.health.settings import HealthSettings
from pointsman.core.ledger.health.standing import Position
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId, WorkerSpec

_IDLE_KINDS = frozenset({"vllm", "sglang", "trtllm"})
"""A llama.cpp would give one of its few slots, and the conversation cached in it, to a canary."""
_NO_CANARY_KINDS = frozenset({"openai"})
"""Nobody knows what a request costs there."""


@dataclass(frozen=True, slots=True)
class CanaryDue:
    """A worker that should get one."""

    worker: WorkerId
    urgent: bool
    """It is in doubt, or left out until one passes; else it is only idle."""


def why_no_canary(settings: HealthSettings, spec: WorkerSpec, crashed: bool) -> str | None:
    """Why a worker gets none at all; None: it does."""
    if not settings.canary:
        return "switched off"
    if spec.kind in _NO_CANARY_KINDS:
        return f"servers of kind {spec.kind} are never asked to compute anything"
    if spec.kv is not None and not spec.kv.alone:
        return "it serves halves of requests only"
    if crashed:
        return "earlier processes of this engine died of canaries"
    return None


def canaries_due(
    entries: Iterable[WorkerEntry], table: FleetTable, settings: HealthSettings, at_ms: float
) -> tuple[CanaryDue, ...]:
    """The most urgent first; never one that has one under way, and never a busy one that nobody doubts."""
    urgent: list[CanaryDue] = []
    idle: list[CanaryDue] = []
    for entry in entries:
        health = entry.health
        if health.canary_off is not None or not health.usable_by_probes or entry.draining is not None:
            continue
        sent_ms = health.canary_sent_ms
        if sent_ms is not None and at_ms - sent_ms < 2.0 * settings.canary_ms:
            continue
        since_last_ms = float("inf") if health.canary_at_ms is None else at_ms - health.canary_at_ms
        position = health.standing.position
        if position is Position.TRIAL and health.canary_failed_ms is not None:
            continue  # none ever passed: it may not be made for them, and a request decides
        if position in (Position.SUSPECT, Position.TRIAL):
            asked_since = health.canary_at_ms is not None and health.canary_at_ms >= health.standing.since_ms
            if not asked_since or since_last_ms >= settings.heartbeat_ms:
                urgent.append(CanaryDue(entry.id, urgent=True))
        elif position is Position.TRUSTED and settings.canary_idle_ms is not None and is_idle(entry, table):
            unproved_ms = at_ms - max(health.proof_ms, health.ready.since_ms)
            never = health.proof_ms == float("-inf") and health.canary_at_ms is None
            wait_ms = settings.heartbeat_ms if never else settings.canary_idle_ms
            if entry.spec.kind in _IDLE_KINDS and unproved_ms >= wait_ms and since_last_ms >= settings.canary_idle_ms:
                idle.append(CanaryDue(entry.id, urgent=False))
    return (*urgent, *idle)


def is_idle(entry: WorkerEntry, table: FleetTable) -> bool:
    """Nothing is there that we know of: ours, other front ends' or others'."""
    cells, slot = table.cells, entry.slot
    busy = cells[Column.RUNNING, slot] or cells[Column.FOREIGN, slot] or cells[Column.QUEUED, slot]
    return not (entry.flights or busy)
