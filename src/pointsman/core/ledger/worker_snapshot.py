"""The snapshot of one worker, from all that the ledger keeps of it."""

from __future__ import annotations

from pointsman.core.ledger.caches import Caches
from pointsman.core.ledger.entries import WorkerEntry
from pointsman.core.ledger.events import KvFeedState
from pointsman.core.ledger.links import machine_of
from pointsman.core.ledger.snapshot import PROMPTS_ONLY, KvSnapshot, WorkerSnapshot
from pointsman.core.ledger.step_times import StepTimes
from pointsman.core.ledger.table import FleetTable
from pointsman.core.model.view import Column, Exclusion

_STATES = {Exclusion.NONE: "ready", Exclusion.ROLE: PROMPTS_ONLY}


def worker_snapshot(entry: WorkerEntry, table: FleetTable, caches: Caches, times: StepTimes | None) -> WorkerSnapshot:
    """One worker as it stands."""
    column = table.cells[:, entry.slot]
    kv = _kv_snapshot(caches, entry.slot)
    not_ours = entry.not_ours
    status = Exclusion(int(column[Column.EXCLUSION]))
    gone = status is Exclusion.UNREACHABLE  # of which the last reading says nothing any more
    gpu_use = None if gone or column[Column.GPU_USE_PERMILLE] < 0 else int(column[Column.GPU_USE_PERMILLE]) / 1000
    return WorkerSnapshot(
        id=entry.id,
        spec=entry.spec,
        state=_STATES.get(status) or status.name.lower(),
        usable=status is Exclusion.NONE,
        reason=entry.draining if entry.draining and status is Exclusion.DRAINING else entry.health.reason,
        running=entry.in_flight,
        sequences=int(column[Column.RUNNING]) - not_ours.sequences,
        foreign=int(column[Column.FOREIGN]),
        queued=int(column[Column.QUEUED]),
        prefill_tokens=int(column[Column.PREFILL_TOKENS]) - not_ours.prefill_tokens,
        kv_tokens=int(column[Column.KV_TOKENS]) - not_ours.kv_tokens,
        kv_capacity_tokens=int(column[Column.KV_CAPACITY_TOKENS]),
        kv_use=None if gone else entry.kv_use,
        gpu_use=gpu_use,
        gpu_memory=None if gone else entry.gpu_memory,
        health=entry.health.snapshot(),
        faults=entry.faults.snapshot(),
        text_blocks=caches.text_blocks_held(entry.slot),
        kv=kv,
        drift=entry.drift.share,
        drift_reason=entry.drift.reason(announces=kv.state is not KvFeedState.OFF),
        exact=caches.is_exact(entry.slot),
        totals=entry.totals,
        times=None if times is None else times.snapshot(entry),
        transfers_out=int(column[Column.TRANSFERS_OUT]) - not_ours.transfers_out,
        transfers_in=int(column[Column.TRANSFERS_IN]) - not_ours.transfers_in,
        kv_group=int(column[Column.KV_GROUP]),
        kv_token_bytes=int(column[Column.KV_TOKEN_BYTES]),
        machine=machine_of(entry.spec),
        role_ordered=entry.spec.role is not entry.told_role,
        others=entry.others,
    )


def _kv_snapshot(caches: Caches, slot: int) -> KvSnapshot:
    view = caches.view(slot)
    return KvSnapshot(
        state=view.state,
        reason=view.fault or view.reason,
        confidence=caches.confidence(slot),
        block_size_tokens=view.spec.block_size_tokens if view.spec else None,
        blocks=caches.exact_blocks_held(slot),
        orphan_blocks=view.orphan_blocks,
    )
