"""What a recorded state says of times: of a prompt's tokens, of queues, of a worker beside the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.decision import Decision
from pointsman.core.model.plan import Aggregate
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId
from pointsman.edge.decisions.predicted import predicted_times
from pointsman.edge.decisions.slow import StepTimes
from pointsman.edge.decisions.state import Recorded
from pointsman.edge.decisions.why import Parts

_SEQUENCES, _CONTEXT_TOKENS, _PREFILL_TOKENS = 8.0, 8_000.0, 256.0
"""Of a usual step, by which workers are compared."""


def step_times(recorded: Recorded) -> StepTimes | None:
    """Of the worker that was chosen; None where nothing was known of anybody, or nobody was chosen."""
    times, view = recorded.times, recorded.view
    if recorded.worker is None or recorded.worker not in view.workers or not times.known.any():
        return None
    row = view.workers.index(recorded.worker)
    usual = times.a + times.b * _SEQUENCES + times.c * _CONTEXT_TOKENS + times.d * _PREFILL_TOKENS
    others = np.delete(usual, row)[np.delete(times.known, row)]
    first = _first_token_ms(recorded, recorded.worker)
    own = float(_prefill_ms(recorded)[row])
    new = max(1, recorded.request.prompt_tokens - int(view.table[Column.CACHED_TOKENS, row]))
    return StepTimes(
        token_ms=own / new,
        queue_ms=0.0 if first is None else max(0.0, first - own - float(times.overhead_ms[row])),
        times_others=float(usual[row] / np.median(others)) if len(others) and times.known[row] else 1.0,
    )


def ttft_parts(recorded: Recorded, ttft_ms: NDArray[np.float64]) -> Parts:
    """A policy's times to the first token, by worker, as its prompt's own time and what goes before and around it."""
    own = np.minimum(_prefill_ms(recorded), ttft_ms)
    return {
        worker: {"prefill_ms": mine, "queue_ms": rest}
        for worker, mine, rest in zip(recorded.view.workers, own.tolist(), (ttft_ms - own).tolist(), strict=True)
    }


def predicted_at(recorded: Recorded, decision: Decision, worker: WorkerId) -> tuple[float | None, float | None]:
    """Times to the first token and between tokens that a decision predicts for that worker."""
    moved = Decision(
        request_id=decision.request_id,
        policy=decision.policy,
        at_ms=decision.at_ms,
        plan=Aggregate(worker),
        view=decision.view,
        unit=decision.unit,
        scores=decision.scores,
        terms=decision.terms,
    )
    return predicted_times(recorded.request, moved, recorded.times)


def _first_token_ms(recorded: Recorded, worker: WorkerId) -> float | None:
    nothing = Decision(
        request_id=recorded.request.id,
        policy="",
        at_ms=recorded.now_ms,
        plan=Aggregate(worker),
        view=recorded.view,
        unit="",
        scores=np.zeros(len(recorded.view)),
    )
    return predicted_times(recorded.request, nothing, recorded.times)[0]


def _prefill_ms(recorded: Recorded) -> NDArray[np.float64]:
    """Time that the prompt's own tokens take, by worker."""
    prompt = recorded.request.prompt_tokens
    cached = np.minimum(recorded.view.column(Column.CACHED_TOKENS), prompt)
    times = recorded.times
    own: NDArray[np.float64] = times.d * (prompt - cached) + times.q * (float(prompt) ** 2 - cached.astype(float) ** 2)
    return own
