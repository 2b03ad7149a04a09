"""What each worker is doing, as the terms of the cost policy need it: one float a worker."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView

Floats = NDArray[np.float64]

OFFLOADED_CREDIT = 0.75
"""Of computing a token, what is saved by fetching it from a tier below the GPU: it takes about a quarter of the time
(time-model.md, llm-d's figures for prompts of 8 to 48 thousand tokens)."""


class CostLoad(NamedTuple):
    """One entry a worker of the view."""

    new: Floats
    """Prompt tokens of the request that it would have to compute."""
    waiting: Floats
    """Sequences whose first token has not come."""
    decoding: Floats
    """Sequences that have it, others' included."""
    there: Floats
    """Both; where all seats are taken, those who sit when it has got one."""
    prefill: Floats
    """Prompt tokens that wait there to be computed."""
    context: Floats
    """KV tokens that they read in a step, once all of them decode."""
    seat_steps: Floats | None = None
    """Steps until it has a seat; None: nowhere would it wait for one."""


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
    seat_steps: Floats | None = None
    seats = table[Column.MAX_SEQUENCES]
    if np.count_nonzero(seats) and np.maximum.reduce(there - seats) > -request.sequences:
        seat_steps, seated = _seats(request, view, seats, there)
        there, context = there * seated, context * seated
    waiting = np.minimum(table[Column.WAITING_FIRST], there)
    return CostLoad(
        new=new,
        waiting=waiting,
        decoding=there - waiting,
        there=there,
        prefill=table[Column.PREFILL_TOKENS].astype(np.float64),
        context=context,
        seat_steps=seat_steps,
    )


def _seats(
    request: Request, view: FleetView, seats: NDArray[np.int64], there: Floats
) -> tuple[Floats | None, Floats | float]:
    """Steps until it has a seat, and the part of those there now who sit beside it then.

    Each of those who sit gets up after as many steps as a sequence there has tokens to come, on the average; so
    somebody does every tokens / seats steps.
    """
    short = np.where(seats > 0, there + request.sequences - seats, 0.0)
    full = short > 0
    if not np.count_nonzero(full):
        return None, 1.0
    to_come = view.table[Column.REMAINING_TOKENS] + view.table[Column.FOREIGN] * view.outlook.output_tokens
    each = np.maximum(there, 1.0)
    steps = np.where(full, short * np.maximum(to_come / each, 1.0) / np.maximum(seats, 1), 0.0)
    return steps, np.where(full, np.maximum(seats - request.sequences, 0) / each, 1.0)
