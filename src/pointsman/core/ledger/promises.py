"""Promises and expectations: what a request adds to its worker's numbers beside load, and takes back exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.ledger.entries import Flight
from pointsman.core.ledger.output_lengths import ExpectedLength
from pointsman.core.model.view import Column

Cells = NDArray[np.int64]
_LONGEST_MS = 1e11
"""Longer promises are as good as none; sums of them have to fit."""


def dispatched(cells: Cells, slot: int, flight: Flight, expected: ExpectedLength | None) -> None:
    """It waits for its first token there. `expected` None: the worker generates nothing for it."""
    cells[Column.WAITING_FIRST, slot] += 1
    flight.expected = expected
    flight.remaining_tokens = 0
    if expected is not None:
        request = flight.request
        flight.remaining_tokens = round(request.sequences * expected.tokens(request.max_output_tokens))
        cells[Column.REMAINING_TOKENS, slot] += flight.remaining_tokens
    slo = flight.request.slo
    if slo is not None and slo.ttft_ms is not None:
        flight.due_ms = round(flight.request.arrival_ms + min(slo.ttft_ms, _LONGEST_MS))
        cells[Column.SLO_WAITING, slot] += 1
        cells[Column.SLO_DUE_MS, slot] += flight.due_ms


def first_token(cells: Cells, slot: int, flight: Flight) -> None:
    """It decodes now."""
    cells[Column.WAITING_FIRST, slot] -= 1
    _first_came(cells, slot, flight)
    slo = flight.request.slo
    if slo is not None and slo.tpot_ms is not None:
        flight.tpot_us = round(1000 * min(slo.tpot_ms, _LONGEST_MS))
        cells[Column.SLO_DECODING, slot] += 1
        cells[Column.SLO_TPOT_US, slot] += flight.tpot_us


def progress(cells: Cells, slot: int, flight: Flight) -> None:
    """Tokens came: what is still expected of an answer that has that many and goes on."""
    if flight.expected is None:
        return
    request = flight.request
    each = max(0, flight.kv_tokens - request.prompt_tokens) / request.sequences
    remaining = round(request.sequences * flight.expected.remaining(each, request.max_output_tokens))
    cells[Column.REMAINING_TOKENS, slot] += remaining - flight.remaining_tokens
    flight.remaining_tokens = remaining


def released(cells: Cells, slot: int, flight: Flight) -> None:
    """It left the worker, however."""
    if not flight.started:
        cells[Column.WAITING_FIRST, slot] -= 1
    cells[Column.REMAINING_TOKENS, slot] -= flight.remaining_tokens
    flight.remaining_tokens = 0
    _first_came(cells, slot, flight)
    if flight.tpot_us is not None:
        cells[Column.SLO_DECODING, slot] -= 1
        cells[Column.SLO_TPOT_US, slot] -= flight.tpot_us
        flight.tpot_us = None


def _first_came(cells: Cells, slot: int, flight: Flight) -> None:
    if flight.due_ms is not None:
        cells[Column.SLO_WAITING, slot] -= 1
        cells[Column.SLO_DUE_MS, slot] -= flight.due_ms
        flight.due_ms = None
