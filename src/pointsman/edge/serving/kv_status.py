"""What the status document says of KV that workers pass on to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pointsman.core.ledger.snapshot import FleetSnapshot, WorkerSnapshot
from pointsman.core.timing.link_learning import LinkRow

_MOST_NAMED = 8


class PassingStatus(msgspec.Struct, omit_defaults=True):
    """Of one worker: what it has to do with others. Totals are since it joined."""

    group: int = 0
    """Workers with the same number can pass KV on to each other; 0: it passes none on."""
    machine: str = ""
    token_bytes: int = 0
    """Of KV; 0: nobody knows."""
    out: int = 0
    """Transfers from it under way."""
    into: int = 0
    """Transfers to it under way."""
    prefills_total: int = 0
    """Prompts computed for other workers."""
    prefills_failed_total: int = 0
    out_total: int = 0
    into_total: int = 0
    out_bytes_total: int = 0
    into_bytes_total: int = 0
    refused: dict[str, str] = {}
    """Of a worker with an ordered role: others with which it can't share requests although their roles ask for it, and
    why. Of roles by configuration `kv_pairs_refused` tells."""


class LinksStatus(msgspec.Struct, omit_defaults=True):
    """Between machines, as far as anything was seen of them; `/v1/links` has each."""

    directions: int
    slowest: str
    """For example `h0 → h1`."""
    slowest_bytes_per_ms: float
    """Of the largest transfers."""
    slowest_floor_ms: float
    fastest: str
    fastest_bytes_per_ms: float
    without_engines: list[str] = []
    """Machines at their ends on which no engine is, the first few."""


class TransfersStatus(msgspec.Struct, omit_defaults=True):
    """Of the fleet, as this front end had it done."""

    under_way: int = 0
    prefills_total: int = 0
    prefills_failed_total: int = 0
    transfers_total: int = 0
    moved_tokens_total: int = 0
    moved_bytes_total: int = 0
    """As told, else from the tokens."""


def passing_status(worker: WorkerSnapshot) -> PassingStatus:
    """One worker's."""
    totals = worker.totals
    return PassingStatus(
        group=worker.kv_group,
        machine=worker.machine,
        token_bytes=worker.kv_token_bytes,
        out=worker.transfers_out,
        into=worker.transfers_in,
        prefills_total=totals.prefills,
        prefills_failed_total=totals.prefills_failed,
        out_total=totals.transfers_out,
        into_total=totals.transfers_in,
        out_bytes_total=totals.moved_out_bytes,
        into_bytes_total=totals.moved_in_bytes,
    )


def transfers_status(fleet: FleetSnapshot) -> TransfersStatus | None:
    """None where no worker passes KV on, and none did."""
    totals = fleet.totals
    if not (totals.prefills or totals.transfers_in or any(worker.kv_group for worker in fleet.workers)):
        return None
    return TransfersStatus(
        under_way=sum(worker.transfers_in for worker in fleet.workers),
        prefills_total=totals.prefills,
        prefills_failed_total=totals.prefills_failed,
        transfers_total=totals.transfers_in,
        moved_tokens_total=totals.moved_tokens,
        moved_bytes_total=totals.moved_in_bytes,
    )


def links_status(rows: Sequence[LinkRow], machines: Mapping[str, str]) -> LinksStatus | None:
    """None where nothing was seen of any. `machines`: on which one each worker is."""
    if not rows:
        return None
    slowest = min(rows, key=lambda row: row.estimate.bytes_per_ms[-1])
    fastest = max(rows, key=lambda row: row.estimate.bytes_per_ms[-1])
    return LinksStatus(
        directions=len(rows),
        slowest=f"{slowest.source} → {slowest.target}",
        slowest_bytes_per_ms=slowest.estimate.bytes_per_ms[-1],
        slowest_floor_ms=slowest.estimate.floor_ms,
        fastest=f"{fastest.source} → {fastest.target}",
        fastest_bytes_per_ms=fastest.estimate.bytes_per_ms[-1],
        without_engines=sorted({end for r in rows for end in (r.source, r.target)} - set(machines.values()))[
            :_MOST_NAMED
        ],
    )
