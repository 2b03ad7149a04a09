"""Mooncake's scheduling over prefill nodes, as the figure of FAST'25 compares it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats
from peers_policies.scored import Scored
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.timing.step import StepCoefficients


def prefill_ms(step: StepCoefficients, prompt: float, cached: Floats) -> Floats:
    """Time of a prompt that is computed alone and in one step, by how much of it is cached."""
    new, squares = prompt - cached, prompt**2 - cached**2
    times: Floats = step.a_ms + step.d_ms_per_prefill_token * new + step.q_ms_per_square_token * squares
    return times


class LocalCacheAware(Scored):
    """The least queue time plus own prefill time; nodes are first come, first served, so both are known."""

    name = "local cache-aware"
    unit = "ms"

    def __init__(self, step: StepCoefficients) -> None:
        self._step = step
        self._free_ms: dict[WorkerId, float] = {}
        self._last: Mapping[WorkerId, float] = {}

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        own = prefill_ms(self._step, facts.prompt, facts.matched)
        free = np.array([self._free_ms.get(worker, 0.0) for worker in view.workers])
        scores: Floats = np.maximum(0.0, free - now_ms) + own
        self._last = dict(zip(view.workers, scores.tolist(), strict=True))
        return scores

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:
        worker = view.workers[row]
        self._free_ms[worker] = now_ms + self._last[worker]
