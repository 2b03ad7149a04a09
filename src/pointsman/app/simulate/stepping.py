"""Stepping: keeps the engines computing, a run of steps after the other."""

from __future__ import annotations

import math
from collections.abc import Callable

from pointsman.app.simulate.events import EventHeap, Rank
from pointsman.app.simulate.intervals import IntervalCounter
from pointsman.app.simulate.worker import ModelledWorker
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.engine_model.step import StepResult

OnResult = Callable[[ModelledWorker, StepResult], None]
"""Called when a run of steps ended, before the next one begins."""
OnReserved = Callable[[ModelledWorker, list[Sequence]], None]
"""Called with sequences that got KV blocks, whose contents are at another worker."""


class Stepping:
    """Ends of runs in the heap of events."""

    def __init__(
        self,
        heap: EventHeap,
        itl: IntervalCounter,
        on_result: OnResult,
        on_reserved: OnReserved,
    ) -> None:
        self._heap = heap
        self._itl = itl
        self._on_result = on_result
        self._on_reserved = on_reserved
        self._settling: ModelledWorker | None = None
        """Its last run is being told of: the next one begins after that."""

    def interrupt(self, worker: ModelledWorker) -> None:
        """Something is about to happen to its engine: a run ends with the step that it is in."""
        if worker.end_ms < math.inf and worker.cut(self._heap.now_ms):
            self._heap.push(worker.end_ms, Rank.STEP, self._ended, (worker, worker.run))

    def wake(self, worker: ModelledWorker) -> None:
        """Something happened to its engine: it computes, if there is anything and it does not do so already."""
        if not worker.alive or worker.end_ms < math.inf or worker is self._settling:
            return
        if worker.begin(self._heap.now_ms):
            self._heap.push(worker.end_ms, Rank.STEP, self._ended, (worker, worker.run))
        reserved = worker.engine.take_reserved()
        if reserved:
            self._on_reserved(worker, reserved)

    def _ended(self, which: tuple[ModelledWorker, int]) -> None:
        worker, run = which
        if worker.run != run:
            return  # it was cut, or the worker died
        self._settling = worker
        self._on_result(worker, worker.finish(self._itl))
        self._settling = None
        self.wake(worker)
