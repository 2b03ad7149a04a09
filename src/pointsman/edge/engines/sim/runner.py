"""Drives the engine model in real time: one timer for the step loop, no task a request or a token."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from pointsman.core.engine_model.busy import LATELY_MS, BusyShare
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.engine_model.sequence import Sequence, SequenceState
from pointsman.core.engine_model.step import StepResult
from pointsman.edge.engines.openai_server.latencies import Live
from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.openai_server.served_engine import TokenSink

logger = logging.getLogger("pointsman.engines.sim")

# Timers have a resolution of 1 ms: a step that ends this soon counts as ended. The next one still starts at its exact
# end, so nothing adds up.
_EARLY_S = 0.0005
# A turn of the event loop computes steps for this long at most, then lets sockets have their turn.
_TURN_S = 0.002
_LATE_S = 0.05


class EngineRunner:
    """One engine model and its clock. Everything happens on the event loop that runs it.

    `clock_s` counts the seconds that the model takes for real ones.
    """

    def __init__(
        self,
        config: EngineConfig,
        speedup: float,
        publish: Callable[[list[KvEvent]], None],
        metrics: ServerMetrics,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock_s = clock_s
        self.engine = EngineModel(config)
        self.slow_factor = 1.0
        """Each step takes that many times its modelled duration."""
        self.behind_ms = 0.0
        """Modelled time by which this machine was too slow for the speed-up, added up."""
        self._speedup = speedup
        self._publish = publish
        self._metrics = metrics
        self._live: dict[Sequence, Live] = {}
        self._start_s = clock_s()
        self._begin_ms: float | None = None
        """When the step began that it is in."""
        self._end_ms = 0.0
        self._busy = BusyShare(lately_ms=LATELY_MS * speedup)
        self._handle: asyncio.Handle | None = None
        self._stopped = False
        self._turning = False

    def now_ms(self) -> float:
        """Modelled time since the start."""
        return (self._clock_s() - self._start_s) * 1000 * self._speedup

    @property
    def busy(self) -> float:
        """Share of the time in which it computed, lately."""
        return self._busy.share(self.now_ms(), self._begin_ms)

    @property
    def model(self) -> EngineModel:
        """Counters, queue, KV cache."""
        return self.engine

    def submit(self, request: EngineRequest, sinks: list[TokenSink]) -> tuple[Sequence, ...]:
        """Queue a request with a sink for each of its sequences; raises `RequestRefusedError`."""
        sequences = self.engine.add(request)
        now_s = self._clock_s()
        for sequence, sink in zip(sequences, sinks, strict=True):
            self._live[sequence] = Live(sink, self._metrics, now_s)
        self._wake()
        return sequences

    def abort(self, sequence: Sequence) -> None:
        """Take a sequence out, if it has not ended; its sink hears nothing more."""
        self.engine.abort_sequence(sequence)
        live = self._live.pop(sequence, None)
        if live is not None:
            live.ended(self._clock_s())

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks unless sequences hold some, and say so in an event at once."""
        done = self.engine.reset_prefix_cache()
        if done:
            self._publish(self.engine.take_events())
        return done

    def transfer_answer(self, sequences: list[Sequence]) -> Mapping[str, object] | None:
        """It moves no KV."""
        return None

    def stop(self) -> None:
        """No further step; sinks hear nothing more."""
        self._stopped = True
        self._live.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wake(self) -> None:
        if self._handle is None and not self._stopped and not self._turning:
            # Not at once, so that requests of the same turn share the first step.
            self._handle = asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._handle = None
        if self._begin(self.now_ms()):
            self._schedule()

    def _begin(self, at_ms: float) -> bool:
        step = self.engine.begin_step(at_ms)
        self._begin_ms = None if step is None else at_ms
        if step is None:
            return False
        self._end_ms = at_ms + step.duration_ms * self.slow_factor
        return True

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = (self._end_ms - self.now_ms()) / (1000 * self._speedup)
        self._handle = loop.call_later(wait_s, self._tick) if wait_s > _EARLY_S else loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._handle = None
        # A request that a sink submits meanwhile is seen by the next step anyway.
        self._turning = True
        try:
            self._turn()
        finally:
            self._turning = False

    def _turn(self) -> None:
        turn_end_s = time.perf_counter() + _TURN_S
        early_ms = _EARLY_S * 1000 * self._speedup
        while not self._stopped:
            now_ms = self.now_ms()
            if self._end_ms > now_ms + early_ms:
                self._schedule()
                return
            began_ms = self._end_ms
            if self._begin_ms is not None:
                self._busy.ran(self._begin_ms, began_ms)
            self._deliver(self.engine.finish_step(began_ms))
            if not self._begin(self._catch_up(began_ms, now_ms)):
                return
            if self._end_ms == began_ms or time.perf_counter() > turn_end_s:
                self._handle = asyncio.get_running_loop().call_soon(self._tick)
                return

    def _catch_up(self, due_ms: float, now_ms: float) -> float:
        """When the next step begins: at the end of the last one, unless this machine can't keep up."""
        late_ms = now_ms - due_ms
        if late_ms <= _LATE_S * 1000 * self._speedup:
            return due_ms
        if self.behind_ms == 0.0 and self.engine.config.step.step_ms(1, 1, 1) > 0:
            logger.warning("this machine is too slow for speedup %g: steps take longer than they should", self._speedup)
        self.behind_ms += late_ms
        return now_ms

    def _deliver(self, result: StepResult) -> None:
        if result.events:
            self._publish(result.events)
        live_of = self._live
        now_s = self._clock_s()
        for sequence, token in result.tokens:
            live = live_of.get(sequence)
            if live is None:
                continue
            live.token(now_s, self._scheduled_s(sequence))
            last = sequence.state is SequenceState.FINISHED
            if last:
                del live_of[sequence]
                live.ended(now_s)
            try:
                live.sink.on_token(token, last)
            except Exception as error:
                # One broken stream must not stop the others.
                logger.exception("tokens of request %s could not be written", sequence.request.id)
                self.abort(sequence)
                live.sink.on_error(error)

    def _scheduled_s(self, sequence: Sequence) -> float | None:
        if sequence.scheduled_ms is None:
            return None
        return self._start_s + sequence.scheduled_ms / (1000 * self._speedup)
