"""llm-d's endpoint picker: weighted sums of scores between 0 and 1, the most wins.

Weights are those of its capacity benchmark: precise prefix 3/2/2, estimated prefix 1/1/1 (prefix, KV use, queue).
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats
from peers_policies.scored import Scored
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.model.worker import WorkerId

INDEX_BLOCK_TOKENS = 16
INDEX_BLOCKS_PER_PROMPT = 256
"""The approximate index sees no more of a prompt."""
INDEX_BLOCKS_PER_WORKER = 31_250
"""Its LRU list for each server: 122 prompts as far as it sees them."""


class LlmdPrecise(Scored):
    """By the engines' KV events."""

    name = "llm-d precise 3/2/2"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return -(3 * facts.matched / facts.prompt + 2 * (1 - facts.kv_use) + 2 * facts.queue_score)


class LlmdLoad(Scored):
    """KV use and queue alone."""

    name = "llm-d load"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return -((1 - facts.kv_use) + facts.queue_score)


class LlmdEstimated(Scored):
    """By what it sent where, in an index of its own that knows the beginning of a prompt only."""

    name = "llm-d estimated 1/1/1"

    def __init__(self) -> None:
        self._sent: dict[WorkerId, OrderedDict[int, None]] = {}

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        keys = self._seen(request)
        share = np.zeros(len(view))
        for row, worker in enumerate(view.workers):
            held = self._sent.get(worker)
            if held:
                share[row] = _leading(keys, held) / max(1, len(keys))
        return -(share + (1 - facts.kv_use) + facts.queue_score)

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:
        held = self._sent.setdefault(view.workers[row], OrderedDict())
        for key in self._seen(request):
            held[key] = None
            held.move_to_end(key)
        # With other blocks than its own it remembers as many prompts.
        most = INDEX_BLOCKS_PER_WORKER * _seen_blocks(request) // INDEX_BLOCKS_PER_PROMPT
        while len(held) > most:
            held.popitem(last=False)

    def _seen(self, request: Request) -> tuple[int, ...]:
        return request.blocks.keys[: _seen_blocks(request)]


def _seen_blocks(request: Request) -> int:
    return INDEX_BLOCKS_PER_PROMPT * INDEX_BLOCK_TOKENS // request.blocks.block_size


def _leading(keys: tuple[int, ...], held: OrderedDict[int, None]) -> int:
    count = 0
    for key in keys:
        if key not in held:
            break
        count += 1
    return count
