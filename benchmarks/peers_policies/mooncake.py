"""Mooncake's scheduling over prefill nodes, as the figure of FAST'25 compares it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from peers_policies.facts import Facts, Floats
from peers_policies.scored import Scored
from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.policy import Timing
from pointsman.core.timing.step import StepCoefficients


def prefill_ms(step: StepCoefficients, prompt: float, cached: Floats) -> Floats:
    """Time of a prompt that is computed alone and in one step, by how much of it is cached."""
    new, squares = prompt - cached, prompt**2 - cached**2
    times: Floats = step.a_ms + step.d_ms_per_prefill_token * new + step.q_ms_per_square_token * squares
    return times


class _FifoNodes(Scored):
    """Nodes that compute one prompt at a time, first come, first served: when each is free is known."""

    unit = "ms"

    def __init__(self, step: StepCoefficients) -> None:
        self._step = step
        self._free_ms: dict[WorkerId, float] = {}

    def queue_ms(self, view: FleetView, now_ms: float) -> Floats:
        """Until each has computed what it was given."""
        free = np.array([self._free_ms.get(worker, 0.0) for worker in view.workers])
        return np.maximum(0.0, free - now_ms)

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:
        cached = view.column(Column.CACHED_TOKENS)[row : row + 1].astype(np.float64)
        self.busy(view.workers[row], now_ms, float(prefill_ms(self._step, request.prompt_tokens, cached)[0]))

    def busy(self, worker: WorkerId, now_ms: float, took_ms: float) -> None:
        """It has so much more to do."""
        self._free_ms[worker] = max(now_ms, self._free_ms.get(worker, 0.0)) + took_ms


class ShortestQueue(_FifoNodes):
    """Load balance: the least queue time."""

    name = "load balance"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return self.queue_ms(view, now_ms)


class LocalCacheAware(_FifoNodes):
    """The least queue time plus own prefill time."""

    name = "local cache-aware"

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return self.queue_ms(view, now_ms) + prefill_ms(self._step, facts.prompt, facts.matched)


class GlobalCacheAware(LocalCacheAware):
    """The same, where a node that holds less than half of the best match may fetch that one's blocks first."""

    name = "global cache-aware"
    makes_plans = True

    def __init__(self, step: StepCoefficients, bytes_per_token: int, bytes_per_ms: float) -> None:
        super().__init__(step)
        self._ms_per_token = bytes_per_token / bytes_per_ms

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        held = view.column(Column.CACHED_TOKENS)
        best = int(held.argmax())
        made = super().decide(request, view, timing, now_ms, rng)
        row = made.chosen_row
        if row is None or not 2 * held[row] < held[best] or made.worker is None:
            return made
        return replace(made, plan=Aggregate(made.worker, Pull(view.workers[best], int(held[best]))))

    def scores(self, request: Request, view: FleetView, facts: Facts, rows: NDArray[np.intp], now_ms: float) -> Floats:
        return self.queue_ms(view, now_ms) + self._own_ms(request, view)

    def chosen(self, request: Request, view: FleetView, row: int, now_ms: float) -> None:
        self.busy(view.workers[row], now_ms, float(self._own_ms(request, view)[row]))

    def _own_ms(self, request: Request, view: FleetView) -> Floats:
        held = view.column(Column.CACHED_TOKENS).astype(np.float64)
        most = float(held.max())
        moves = 2 * held < most
        there = prefill_ms(self._step, request.prompt_tokens, np.where(moves, most, held))
        return there + moves * (most - held) * self._ms_per_token
