"""Replay: the same requests on the engine model, at the times at which they came, with given coefficients.

Each first token that was measured is the end of a step. The replay predicts it, notes how far off it was, and goes on
from where it really was: so a stall, a compilation or chance when a request comes counts once and not in all that
follows. Last tokens are followed, too, and a request comes when all have ended that had ended before it: so steps are
compared whose requests are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pointsman.app.calibration.measurement import Floats, Measurement
from pointsman.app.calibration.parameters import Parameters
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel, RequestRefusedError
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.model.errors import CalibrationError

_MOST_STEPS = 100_000
"""Steps that are computed in one go as long as nothing happens."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came out; nan: not before the end of the replay. Times in ms."""

    first_error: Floats
    """log(predicted / measured) of the time to each first token since the one before it, or since the engine had been
    idle; nan where none came."""
    together: Floats
    """How many first tokens came at once with each one: they are one observation."""
    decode_ms: Floats
    """Time from first to last token."""
    first_ms: Floats
    """When the first token came, and the last, on the measurement's clock. Unless measured ones are followed they are
    what the engine would have done on its own."""
    last_ms: Floats
    end_ms: float
    most_sequences: int
    """Decoded side by side."""
    most_context_tokens: int
    """KV tokens that one step read."""
    preemptions: int


class Replayer:
    """One measurement, ready to be replayed many times."""

    def __init__(self, measured: Measurement, engine: EngineConfig, *, ahead: bool) -> None:
        """`engine`: sizes; its step coefficients are not looked at. `ahead`: the engine schedules a step while the one
        before it is computed, so that a request that comes meanwhile waits for one step more."""
        self.measured = measured
        self.step_ends_ms = measured.step_ends_ms
        self.by_last = np.argsort(measured.last_ms)[: int(np.isfinite(measured.last_ms).sum())].tolist()
        """Requests in the order of their last tokens."""
        self.ended_before = np.searchsorted(measured.last_ms[self.by_last], measured.arrival_ms, "right").tolist()
        """How many of them had ended when each request came."""
        self._engine = engine
        self._ahead = ahead
        self._requests = tuple(
            LengthRequest(
                str(number), request.prompt_tokens, request.output_tokens, measured.hashes(number, engine.block_size)
            )
            for number, request in enumerate(measured.requests)
        )

    def run(self, parameters: Parameters, until_ms: float = math.inf, *, follow: bool = True) -> Replayed:
        """Replay until so much work is done. `follow`: go on from where measured first tokens really were.

        Raises CalibrationError for a request that can't be computed on such an engine.
        """
        run = _Run(self, self._engine, self._requests, parameters, ahead=self._ahead, follow=follow)
        try:
            return run.until(until_ms)
        except RequestRefusedError as error:
            raise CalibrationError(
                f"the measurements do not go with the sizes given for the engine: {error}; "
                "give the engine's --kv-tokens as it was"
            ) from error

    def arrivals(self) -> Iterator[tuple[float, LengthRequest]]:
        """Times and requests. Where traffic went on that is not known, it is taken to have gone on as it was."""
        measured, requests = self.measured, self._requests
        arrival_ms = measured.arrival_ms.tolist()
        count = len(requests)
        yield from zip(arrival_ms, requests, strict=True)
        # So many gaps there are between as many requests and the first one of the next round.
        round_ms = arrival_ms[-1] * count / (count - 1) if count > 1 else 0.0
        number = count
        shared = measured.shared_blocks(self._engine.block_size)
        while measured.goes_on and round_ms > 0:
            turn, place = divmod(number, count)
            request = requests[place]
            # Prompts begin alike as far as those that are known do.
            again = replace(request, id=str(number), block_hashes=request.block_hashes[: shared[place]])
            yield arrival_ms[place] + turn * round_ms, again
            number += 1
        while True:
            yield math.inf, requests[0]


class _Run:
    """One replay."""

    def __init__(
        self,
        replayer: Replayer,
        engine: EngineConfig,
        requests: tuple[LengthRequest, ...],
        parameters: Parameters,
        *,
        ahead: bool,
        follow: bool,
    ) -> None:
        self._engine = EngineModel(replace(engine, step=parameters.step))
        self._arrivals = replayer.arrivals()
        self._next_ms, self._next = next(self._arrivals)
        self._replayer = replayer
        self._ended = 0
        """So many of the requests with the earliest last tokens have all ended."""
        self._measured_last_ms: list[float] = (replayer.measured.last_ms - parameters.overhead_ms).tolist()
        self._measured_ms: list[float] = (replayer.step_ends_ms - parameters.overhead_ms).tolist()
        self._overhead_ms = parameters.overhead_ms
        self._ahead = ahead
        self._follow = follow
        count = len(requests)
        self._first_error = [math.nan] * count
        self._together = [1] * count
        self._began_work_ms = [math.nan] * count
        self._decode_ms = [math.nan] * count
        self._first_ms = [math.nan] * count
        self._last_ms = [math.nan] * count
        self._missing = count
        self._now_ms = 0.0
        self._since_ms = 0.0
        """When the time that is predicted next began."""
        self._work_ms = 0.0
        """Predicted time of all steps so far."""
        self._most_sequences = self._most_context_tokens = 0

    def until(self, until_ms: float) -> Replayed:
        engine = self._engine
        late = False  # a request came while a step was computed, and the next one is scheduled without it
        while self._missing and self._work_ms <= until_ms:
            if not (late and engine.running):
                self._take_arrived()
            step = engine.begin_step(self._now_ms, 1 if late else _MOST_STEPS)
            if late:
                self._take_arrived()
            late = False
            if step is None:
                self._now_ms = self._since_ms = self._next_ms
                continue
            duration_ms = step.duration_ms
            if self._may_come() and self._next_ms < self._now_ms + duration_ms:
                duration_ms = engine.cut_step(self._next_ms)
                late = self._ahead
            batch = step.batch
            self._most_sequences = max(self._most_sequences, batch.decodes)
            self._most_context_tokens = max(self._most_context_tokens, batch.context_tokens)
            self._finish(duration_ms)
        return Replayed(
            np.array(self._first_error),
            np.array(self._together, dtype=np.float64),
            np.array(self._decode_ms),
            np.array(self._first_ms) + self._overhead_ms,
            np.array(self._last_ms) + self._overhead_ms,
            self._work_ms,
            self._most_sequences,
            self._most_context_tokens,
            engine.preemptions,
        )

    def _may_come(self) -> bool:
        """Whether all have ended that had ended when the next request came."""
        number = int(self._next.id)
        ended_before = self._replayer.ended_before
        return not self._follow or number >= len(ended_before) or self._ended >= ended_before[number]

    def _take_arrived(self) -> None:
        while self._next_ms <= self._now_ms and (self._may_come() or self._engine.idle):
            self._engine.add(self._next)
            self._next_ms, self._next = next(self._arrivals)

    def _finish(self, duration_ms: float) -> None:
        self._now_ms += duration_ms
        self._work_ms += duration_ms
        result = self._engine.finish_step(self._now_ms)
        count = len(self._decode_ms)
        numbers = [int(sequence.request.id) for sequence in result.first]
        known = [number for number in numbers if number < count]
        for number in known:
            self._began_work_ms[number] = self._work_ms
        if known:
            self._look(known)
        for number in known:
            self._first_ms[number] = self._now_ms
        for sequence in result.finished:
            number = int(sequence.request.id)
            if number < count:
                self._last_ms[number] = self._now_ms
                self._decode_ms[number] = self._work_ms - self._began_work_ms[number]
                self._missing -= 1
                if self._follow and self._measured_last_ms[number] > self._since_ms:
                    self._now_ms = self._since_ms = self._measured_last_ms[number]
        by_last = self._replayer.by_last
        while self._ended < len(by_last) and not math.isnan(self._decode_ms[by_last[self._ended]]):
            self._ended += 1

    def _look(self, numbers: list[int]) -> None:
        """Compare the end of a step with the first tokens that were measured, and go on from there."""
        since_ms = self._since_ms
        predicted_ms = self._now_ms - since_ms
        for number in numbers:
            taken_ms = self._measured_ms[number] - since_ms
            # The first one waits for compilation and loading, too, which is not predicted.
            if not self._follow and number > 0:
                continue
            # Not above zero where the engine had it in an earlier step: then nothing can be compared.
            if taken_ms > 0 and predicted_ms > 0:
                self._first_error[number] = math.log(predicted_ms / taken_ms)
                self._together[number] = len(numbers)
                self._now_ms = self._since_ms = max(self._since_ms, since_ms + taken_ms)
