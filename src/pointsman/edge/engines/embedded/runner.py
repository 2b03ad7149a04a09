"""Drives the embedded engine: steps are computed in a thread of their own, everything else is on the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from pointsman.core.engine_model.busy import BusyShare
from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence, SampledRequest
from pointsman.edge.engines.embedded.engine import EmbeddedEngine, Work
from pointsman.edge.engines.embedded.sampling import Chosen

_log = logging.getLogger("pointsman.engines.embedded")

_NOTHING = Chosen(0)


class ChosenSink(Protocol):
    """Takes the tokens of one sequence."""

    def on_chosen(self, chosen: Chosen, last: bool) -> None:
        """One more token; `last` when the engine generates no further one."""

    def on_error(self, error: Exception) -> None:
        """The sequence can't go on: it has been taken out."""


class EmbeddedRunner:
    """One engine at work. Make it, and call everything, on one event loop."""

    def __init__(self, engine: EmbeddedEngine, publish: Callable[[list[KvEvent]], None]) -> None:
        self.engine = engine
        self._publish = publish
        self._sinks: dict[Sequence, ChosenSink] = {}
        self._thread = ThreadPoolExecutor(1, "embedded engine")
        self._loop = asyncio.get_running_loop()
        self._start_s = time.perf_counter()
        self._busy = BusyShare()
        self._begun_ms: float | None = None
        self._waking = False
        self._stopped = False

    def now_ms(self) -> float:
        """Since it was made."""
        return (time.perf_counter() - self._start_s) * 1000

    @property
    def busy(self) -> float:
        """Share of the time in which it computed, lately."""
        return self._busy.share(self.now_ms(), self._begun_ms)

    def submit(self, request: SampledRequest, sinks: list[ChosenSink]) -> tuple[Sequence, ...]:
        """Queue a request with a sink for each of its sequences; raises RequestRefusedError."""
        sequences = self.engine.model.add(request)
        self._sinks.update(zip(sequences, sinks, strict=True))
        self._wake()
        return sequences

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out, if it has not ended; its sink hears nothing more."""
        self._sinks.pop(sequence, None)
        self.engine.model.abort_sequence(sequence)

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks unless sequences hold some, and say so in an event at once."""
        done = self.engine.model.reset_prefix_cache()
        if done:
            self._publish(self.engine.model.take_events())
        return done

    async def stop(self) -> None:
        """No further step; sinks hear nothing more. Waits for the step that is being computed."""
        self._stopped = True
        self._sinks.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _wake(self) -> None:
        if self._begun_ms is None and not self._waking and not self._stopped:
            # Not at once, so that requests of the same turn share the first step.
            self._waking = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._waking = False
        if self._stopped:
            return
        now_ms = self.now_ms()
        work = self.engine.begin(now_ms)
        if work is None:
            return
        self._begun_ms = now_ms
        future = self._loop.run_in_executor(self._thread, self.engine.compute, work)
        future.add_done_callback(lambda done: self._computed(work, done))

    def _computed(self, work: Work, done: asyncio.Future[None]) -> None:
        now_ms = self.now_ms()
        if self._begun_ms is not None:
            self._busy.ran(self._begun_ms, now_ms)
        self._begun_ms = None
        if self._stopped:
            return
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._failed(work, error)
        else:
            self._deliver(self.engine.finish(now_ms))
        self._begin()

    def _failed(self, work: Work, error: BaseException) -> None:
        """Blocks that the step did not fill may be shared already: all requests and the cache are lost."""
        _log.error("a step failed; all requests are ended and the cache is emptied: %r", error, exc_info=error)
        for sequence in work.wanting:
            sequence.chosen = _NOTHING
        self.engine.finish(self.now_ms())
        for held in self.engine.model.requests():
            self.engine.model.abort_sequence(held)
        self.reset_prefix_cache()
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_error(EngineError("the engine failed while it computed this; its log says more"))

    def _deliver(self, result: StepResult) -> None:
        if result.events:
            self._publish(result.events)
        for sequence, _ in result.tokens:
            sink = self._sinks.get(sequence)
            if sink is None or not isinstance(sequence, ComputedSequence):
                continue
            last = sequence.state is SequenceState.FINISHED
            if last:
                del self._sinks[sequence]
            try:
                sink.on_chosen(sequence.chosen, last)
            except Exception as error:
                # One broken stream must not stop the others.
                _log.exception("tokens of request %s could not be written", sequence.request.id)
                self.abort(sequence)
                sink.on_error(error)
