"""Guards at work: rows of a view that an operator's limits exclude, unless nobody would be left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pointsman.core.ledger.groups import ModelGroup
from pointsman.core.model.guards import Guards
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion

Mask = NDArray[np.bool_]


def guard(guards: Guards, request: Request, group: ModelGroup, table: NDArray[np.int64]) -> bool:
    """Exclude the rows beyond a limit; True if a guard was lifted, as it would have left no worker.

    One after the other, the farthest workers first: each guard is lifted by itself.
    """
    exclusion = table[Column.EXCLUSION]
    lifted = False
    for reason, beyond in _beyond(guards, request, group, table):
        if len(group.prefill_rows):
            # They stand in for each other only: what they lack is no reason to lift a guard for the others.
            by_role = exclusion == Exclusion.ROLE
            out = by_role & beyond
            if out.sum() < by_role.sum():
                exclusion[out] = reason
        eligible = exclusion == Exclusion.NONE
        out = eligible & beyond
        if not out.any():
            continue
        if out.sum() == eligible.sum():
            lifted = True
        else:
            exclusion[out] = reason
    return lifted


def _beyond(
    guards: Guards, request: Request, group: ModelGroup, table: NDArray[np.int64]
) -> Iterator[tuple[Exclusion, Mask]]:
    if guards.topology_distance is not None:
        yield Exclusion.TOO_FAR, table[Column.TOPOLOGY_DISTANCE] > guards.topology_distance
    if guards.kv_headroom is not None:
        yield Exclusion.KV_SHORT, _short_of_kv(guards.kv_headroom, request, table)
    if guards.gpu_use is not None:
        # Unknown is -1, and so never beyond.
        busy = table[Column.GPU_USE_PERMILLE] > round(1000 * guards.gpu_use)
        busy[group.decode_rows] = False
        yield Exclusion.GPU_BUSY, busy


def _short_of_kv(headroom: float, request: Request, table: NDArray[np.int64]) -> Mask:
    """The engine's own count, with the prompts that came after; where it gives none, what our requests hold."""
    capacity = table[Column.KV_CAPACITY_TOKENS]
    told = table[Column.KV_USED_TOKENS]
    used = np.where(told > 0, told + table[Column.PREFILL_TOKENS], table[Column.KV_TOKENS])
    new = request.prompt_tokens - table[Column.CACHED_TOKENS]
    short: Mask = (capacity > 0) & (capacity - used - new < headroom * capacity)
    return short
