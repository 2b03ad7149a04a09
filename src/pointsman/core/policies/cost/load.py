"""What each worker is doing, as the terms of the cost policy need it: one float a worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView

Floats = NDArray[np.float64]

OFFLOADED_CREDIT = 0.75
"""Of computing a token, what is saved by fetching it from a tier below the GPU: it takes about a quarter of the time
(time-model.md, llm-d's figures for prompts of 8 to 48 thousand tokens)."""


@dataclass(frozen=True, slots=True)
class CostLoad:
    """One entry a worker of the view."""

    new: Floats
    """Prompt tokens of the request that it would have to compute."""
    waiting: Floats
    """Sequences whose first token has not come."""
    decoding: Floats
    """Sequences that have it, others' included."""
    there: Floats
    """Both."""
    prefill: Floats
    """Prompt tokens that wait there to be computed."""
    context: Floats
    """KV tokens that they read in a step, once all of them decode."""


def cost_load(request: Request, view: FleetView) -> CostLoad:
    """Read a view. Sequences that are not ours are taken to be like the request."""
    # Column by column: to make floats of all of a large table takes as long as all the rest.
    table = view.table
    new: Floats = float(request.prompt_tokens) - table[Column.CACHED_TOKENS]
    offloaded = table[Column.OFFLOADED_TOKENS]
    if np.count_nonzero(offloaded):
        new = new - OFFLOADED_CREDIT * offloaded
    there, context = table[Column.RUNNING].astype(np.float64), table[Column.KV_TOKENS].astype(np.float64)
    foreign = table[Column.FOREIGN]
    if np.count_nonzero(foreign):
        there = there + foreign
        context = context + foreign * (request.prompt_tokens + view.outlook.output_tokens / 2)
    waiting = np.minimum(table[Column.WAITING_FIRST], there)
    return CostLoad(
        new=new,
        waiting=waiting,
        decoding=there - waiting,
        there=there,
        prefill=table[Column.PREFILL_TOKENS].astype(np.float64),
        context=context,
    )
