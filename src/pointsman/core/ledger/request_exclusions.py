"""Exclusions that hold for one request only, written into its own copy of the fleet's table."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from pointsman.core.ledger.groups import ModelGroup
from pointsman.core.model.blocks import BlockUnit
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerId


def exclude_for_request(
    request: Request,
    group: ModelGroup,
    tried: Collection[WorkerId],
    table: NDArray[np.int64],
    expected_at: Mapping[int, int],
) -> None:
    """Reasons that hold for this request only; they never hide a reason that the worker has already.

    A worker for prefill, which takes no whole request, may be of use for a part of it, but for these reasons.

    `expected_at`: sequences by slot that are there by a guess, by which nobody is turned away.
    """
    exclusion = table[Column.EXCLUSION]
    if request.pinned_worker is not None:
        for row, worker in enumerate(group.workers):
            if worker != request.pinned_worker and exclusion[row] == 0 and worker not in tried:
                exclusion[row] = Exclusion.PINNED_ELSEWHERE
    by_role = group.prefill_rows
    if len(by_role):
        by_role = by_role[exclusion[by_role] == Exclusion.ROLE]
        exclusion[by_role] = Exclusion.NONE
    _exclude(request, group, tried, table, expected_at)
    if len(by_role):
        if request.blocks.unit is BlockUnit.TOKENS:
            # A prefill ends with a token; that a prompt leaves no room for it would be the client's error elsewhere.
            context = table[Column.CONTEXT_TOKENS, by_role]
            short = by_role[(context == request.prompt_tokens) & (exclusion[by_role] == Exclusion.NONE)]
            exclusion[short] = Exclusion.CONTEXT_TOO_SMALL
        exclusion[by_role[exclusion[by_role] == Exclusion.NONE]] = Exclusion.ROLE


def _exclude(
    request: Request,
    group: ModelGroup,
    tried: Collection[WorkerId],
    table: NDArray[np.int64],
    expected_at: Mapping[int, int],
) -> None:
    exclusion = table[Column.EXCLUSION]
    if tried:
        rows = [row for row, worker in enumerate(group.workers) if worker in tried]
        exclusion[rows] = np.where(exclusion[rows] == 0, Exclusion.ALREADY_TRIED, exclusion[rows])
    if request.blocks.unit is BlockUnit.TOKENS:
        # An estimated length excludes nobody: the engine judges it.
        context = table[Column.CONTEXT_TOKENS]
        short = (context > 0) & (context < request.prompt_tokens) & (exclusion == 0)
        exclusion[short] = Exclusion.CONTEXT_TOO_SMALL
    if group.any_queue_limit:
        limit = table[Column.QUEUE_LIMIT]
        full = (limit > 0) & (table[Column.QUEUED] >= limit) & (exclusion == 0)
        exclusion[full] = Exclusion.QUEUE_FULL
    if group.any_cap:
        cap, running = table[Column.CAP], table[Column.RUNNING]
        if expected_at:
            guessed = (expected_at.get(int(slot), 0) for slot in group.slots)
            running = running - np.fromiter(guessed, np.int64, len(group.slots))
        full = (cap > 0) & (running >= cap) & (exclusion == 0)
        exclusion[full] = Exclusion.AT_CAP
