"""Drives the embedded engine: steps are computed in a thread of their own, everything else is on the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pointsman.core.engine_model.busy import BusyShare
from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence
from pointsman.edge.engines.embedded.engine import EmbeddedEngine, Work
from pointsman.edge.engines.embedded.kv_seam import KvTransfers
from pointsman.edge.engines.openai_server.latencies import Live
from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.openai_server.sampling import Chosen, SampledRequest
from pointsman.edge.engines.openai_server.served_engine import TokenSink

_log = logging.getLogger("pointsman.engines.embedded")

_NOTHING = Chosen(0)


class EmbeddedRunner:
    """One engine at work. Make it, and call everything, on one event loop."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        publish: Callable[[list[KvEvent]], None],
        metrics: ServerMetrics | None = None,
    ) -> None:
        self.engine = engine
        self.transfers: KvTransfers | None = None
        """What moves KV between engines, if something does."""
        self.broken = False
        """Its books can't be trusted any more: it computes nothing, and refuses everything."""
        self._publish = publish
        self._metrics = ServerMetrics(time.time()) if metrics is None else metrics
        self._live: dict[Sequence, Live] = {}
        self._thread = ThreadPoolExecutor(1, "embedded engine")
        self._loop = asyncio.get_running_loop()
        self._start_s = time.perf_counter()
        self._busy = BusyShare()
        self._begun_ms: float | None = None
        self._between: list[Callable[[], None]] = []
        self._waking = False
        self._stopped = False

    def now_ms(self) -> float:
        """Since it was made."""
        return (time.perf_counter() - self._start_s) * 1000

    @property
    def busy(self) -> float:
        """Share of the time in which it computed, lately."""
        return self._busy.share(self.now_ms(), self._begun_ms)

    @property
    def model(self) -> EngineModel:
        """Counters, queue, KV cache."""
        return self.engine.model

    def submit(self, request: SampledRequest, sinks: list[TokenSink]) -> tuple[Sequence, ...]:
        """Queue a request with a sink for each of its sequences; raises RequestRefusedError, EngineError if broken."""
        if self.broken:
            raise EngineError("the engine has failed and computes nothing any more; its log says why; start it again")
        if self.transfers is not None and request.kv_transfer_params is not None:
            request = self.transfers.prepared(request)
        try:
            sequences = self.engine.model.add(request)
        except RequestRefusedError:
            if self.transfers is not None:
                self.transfers.refused(request)
            raise
        now_s = time.perf_counter()
        for sequence, sink in zip(sequences, sinks, strict=True):
            self._live[sequence] = Live(sink, self._metrics, now_s)
        self.wake()
        return sequences

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out, if it has not ended; its sink hears nothing more."""
        live = self._live.pop(sequence, None)
        if live is not None:
            live.ended(time.perf_counter())
        if self.engine.model.abort_sequence(sequence) and self.transfers is not None:
            self.transfers.aborted(sequence)

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """A sequence can't go on: it is taken out, and whoever wants its tokens is told why."""
        live = self._live.get(sequence)
        self.abort(sequence)
        if live is not None:
            live.sink.on_error(error)

    def between_steps(self, do: Callable[[], None]) -> None:
        """Call something now, or when the step that is being computed has ended: no block is half done then."""
        if self._begun_ms is None:
            do()
        else:
            self._between.append(do)

    def transfer_answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """What the answer to a request with `kv_transfer_params` says of its KV."""
        return None if self.transfers is None else self.transfers.answer(sequences)

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks unless sequences hold some, and say so in an event at once."""
        done = self.engine.model.reset_prefix_cache()
        if done:
            self._publish(self.engine.model.take_events())
        return done

    async def stop(self) -> None:
        """No further step; sinks hear nothing more. Waits for the step that is being computed."""
        self._stopped = True
        self._live.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def wake(self) -> None:
        """There may be something to compute."""
        if self._begun_ms is None and not self._waking and not self._stopped:
            # Not at once, so that requests of the same turn share the first step.
            self._waking = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._waking = False
        if self._stopped:
            return
        try:
            self._begin_step()
        except Exception as error:
            self._break(error)

    def _begin_step(self) -> None:
        now_ms = self.now_ms()
        work = self.engine.begin(now_ms)
        if self.transfers is not None and (reserved := self.engine.model.take_reserved()):
            self.transfers.reserved(reserved)
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
        try:
            if error is not None:
                self._failed(work, error)
            else:
                self._deliver(self.engine.finish(now_ms))
            between, self._between = self._between, []
            for do in between:
                do()
        except Exception as failure:
            self._break(failure)
            return
        self._begin()

    def _break(self, error: Exception) -> None:
        """Something between steps failed: tokens may be lost, and nobody knows what the blocks hold."""
        _log.critical("the engine has failed and computes nothing any more; start it again: %r", error, exc_info=error)
        self.broken = self._stopped = True
        self._tell_lost()

    def _failed(self, work: Work, error: BaseException) -> None:
        """Blocks that the step did not fill may be shared already: all requests and the cache are lost."""
        _log.error("a step failed; all requests are ended and the cache is emptied: %r", error, exc_info=error)
        for sequence in work.wanting:
            sequence.chosen = _NOTHING
        self.engine.finish(self.now_ms())
        for held in self.engine.model.requests():
            self.engine.model.abort_sequence(held)
        if self.transfers is not None:
            self.transfers.lost()
        self.reset_prefix_cache()
        self._tell_lost()

    def _tell_lost(self) -> None:
        lost, self._live = self._live, {}
        for live in lost.values():
            live.sink.on_error(EngineError("the engine failed while it computed this; its log says more"))

    def _deliver(self, result: StepResult) -> None:
        if result.events:
            self._publish(result.events)
        if self.transfers is not None and result.finished:
            self.transfers.finished(result.finished)
        now_s = time.perf_counter()
        for sequence, _ in result.tokens:
            live = self._live.get(sequence)
            if live is None or not isinstance(sequence, ComputedSequence):
                continue
            scheduled_s = None if sequence.scheduled_ms is None else self._start_s + sequence.scheduled_ms / 1000
            live.token(now_s, scheduled_s)
            last = sequence.state is SequenceState.FINISHED
            if last:
                del self._live[sequence]
                live.ended(now_s)
            chosen = sequence.chosen
            try:
                live.sink.on_token(chosen.token, last, chosen)
            except Exception as error:
                # One broken stream must not stop the others.
                _log.exception("tokens of request %s could not be written", sequence.request.id)
                self.abort(sequence)
                live.sink.on_error(error)
