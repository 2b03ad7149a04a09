"""Records: what is written down of each request while a simulation runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pointsman.app.simulate.intervals import IntervalHistogram
from pointsman.app.simulate.outcome import Outcome, Status, WorkerTotals
from pointsman.core.workload.trace import Trace

UNENDED = -1


class Records:
    """Columns with one entry a request of the trace."""

    def __init__(self, trace: Trace) -> None:
        count = len(trace)
        self._trace = trace
        self.arrival_ms = [math.nan] * count
        self.dispatched_ms = [math.nan] * count
        self.first_token_ms = [math.nan] * count
        self.end_ms = [math.nan] * count
        self.output_tokens = [0] * count
        self.cached_tokens = [0] * count
        self.worker = [-1] * count
        self.prefill_worker = [-1] * count
        self.prefilled_ms = [math.nan] * count
        self.kv_arrived_ms = [math.nan] * count
        self.moved_tokens = [0] * count
        self.fallback = [False] * count
        self.status = [UNENDED] * count
        self.ended = 0

    def end(self, position: int, status: Status, at_ms: float) -> None:
        """A request ended, for the first and only time."""
        if self.status[position] != UNENDED:
            raise RuntimeError(f"request {position} ended twice")
        self.status[position] = status
        self.end_ms[position] = at_ms
        self.ended += 1

    def outcome(
        self, itl: IntervalHistogram, workers: Sequence[WorkerTotals], started_ms: float, ended_ms: float
    ) -> Outcome:
        """All of it."""
        return Outcome(
            arrival_ms=np.array(self.arrival_ms),
            dispatched_ms=np.array(self.dispatched_ms),
            first_token_ms=np.array(self.first_token_ms),
            end_ms=np.array(self.end_ms),
            prompt_tokens=np.array([request.prompt_tokens for request in self._trace.requests], dtype=np.int64),
            output_tokens=np.array(self.output_tokens, dtype=np.int64),
            asked_tokens=np.array([request.output_tokens for request in self._trace.requests], dtype=np.int64),
            cached_tokens=np.array(self.cached_tokens, dtype=np.int64),
            worker=np.array(self.worker, dtype=np.int64),
            prefill_worker=np.array(self.prefill_worker, dtype=np.int64),
            prefilled_ms=np.array(self.prefilled_ms),
            kv_arrived_ms=np.array(self.kv_arrived_ms),
            moved_tokens=np.array(self.moved_tokens, dtype=np.int64),
            fallback=np.array(self.fallback, dtype=np.bool_),
            status=np.array(self.status, dtype=np.int64),
            itl=itl,
            workers=tuple(workers),
            started_ms=started_ms,
            ended_ms=ended_ms,
        )
