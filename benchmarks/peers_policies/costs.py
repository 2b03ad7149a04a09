"""Costs: LMetric's product, an additive cost in blocks, and a price in milliseconds with a term for evictions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats
from peers_policies.scored import Scored
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.step import StepCoefficients


class LMetric(Scored):
    """New prefill tokens, queued ones included, times the batch."""

    name = "LMetric, queued included"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return (facts.prefill + np.maximum(1.0, facts.new)) * (facts.batch + 1)


class Additive(Scored):
    """Blocks to prefill and blocks held for decoding, added up: a prefill block equals a resident one."""

    name = "additive prefill + decode blocks, weight 1"
    unit = "blocks"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        resident = facts.used + facts.waiting * facts.prompt + facts.new
        return (facts.prefill + facts.new + resident) / 16


class Priced(Scored):
    """Milliseconds: prefill with the decodes that it holds up, decode, λ times what evictions may cost later.

    Whether a worker must evict is told by what was sent to it, as the view does not show free blocks.
    """

    unit = "ms"

    def __init__(self, step: StepCoefficients, eviction_weight: float, output_tokens: int = 500) -> None:
        self.name = f"priced, λ = {eviction_weight:g}"
        self._step = step
        self._weight = eviction_weight
        self._output_tokens = output_tokens
        self._stored: dict[WorkerId, float] = {}

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        d, b, c = (
            self._step.d_ms_per_prefill_token,
            self._step.b_ms_per_sequence,
            self._step.c_ms_per_1000_context_tokens,
        )
        stored = np.array([self._stored.get(worker, 0.0) for worker in view.workers])
        full = stored + facts.new + self._output_tokens > facts.capacity
        prefill = d * (facts.prefill + facts.new) * (1 + 0.1 * facts.batch)
        decode = 2 * self._output_tokens * facts.batch * (b + c * facts.prompt / 1000)
        evicted = self._weight * d * facts.new * np.where(full, 1.0, 0.2)
        filling = (facts.used + facts.waiting * facts.prompt + facts.new) / facts.capacity
        scores: Floats = prefill + decode + evicted + 1e5 * np.maximum(0.0, filling - 0.95)
        return scores

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:
        worker = view.workers[row]
        new = request.prompt_tokens - int(view.column(Column.CACHED_TOKENS)[row])
        self._stored[worker] = self._stored.get(worker, 0.0) + new
