"""ModelledWorker: one engine in virtual time: which run of steps it is in, until when, and what it did so far."""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pointsman.app.simulate.flight import Flight
from pointsman.app.simulate.intervals import IntervalCounter
from pointsman.app.simulate.kv import kv_shape
from pointsman.app.simulate.outcome import WorkerTotals
from pointsman.app.simulate.setup import Setup, WorkerGroup
from pointsman.core.engine_model.busy import BusyShare
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.events import KvEvent
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.engine_model.step import Step, StepResult
from pointsman.core.model.stage import Stage
from pointsman.core.model.worker import Role, WorkerId, WorkerSpec, worker_id

PROGRESS_EVERY_TOKENS = 32
"""How often a stream tells the ledger that its KV grew; the live relay's figure."""
MOST_STEPS = 256
"""Longest run of steps."""
Announcement = tuple[float, list[KvEvent]]
"""KV events, and the time in ms when the ledger hears of them."""
_DRAWN = 16 * MOST_STEPS
"""Steps whose noise is drawn together."""
_NOBODY: Mapping[Sequence, float] = {}


@dataclass(frozen=True, slots=True)
class Lost:
    """What was at a worker that died."""

    answered: list[Flight]
    """It was to answer them."""
    legs: list[Flight]
    """It computed their prompt, or held KV for them."""


class ModelledWorker:
    """`number` counts through the groups. All methods are told what time it is. `seed`: of the noise of its steps."""

    def __init__(
        self, number: int, group: WorkerGroup, models: tuple[str, ...], block_tokens: int, setup: Setup, seed: int = 0
    ) -> None:
        profile = group.profile
        self.number = number
        self.group = group
        self.block_tokens = block_tokens
        num_blocks = profile.num_blocks(block_tokens)
        capacity = num_blocks * block_tokens
        self._config = EngineConfig(
            step=profile.step,
            num_blocks=num_blocks,
            block_size=block_tokens,
            max_num_seqs=setup.max_num_seqs,
            max_batched_tokens=setup.max_batched_tokens,
            max_model_len=min(setup.max_context_tokens or capacity, capacity),
            prefix_caching=setup.prefix_caching,
            tiers=setup.tiers,
        )
        self.spec = WorkerSpec(
            id=worker_id(f"w{number}"),
            url=f"sim://w{number}",
            kind="vllm",
            models=group.models or models,
            role=group.role,
            gpu_count=profile.tensor_parallel,
            kv_capacity_tokens=capacity,
            block_size_tokens=block_tokens if setup.kv_events else None,
            max_context_tokens=self._config.max_model_len,
            max_batch_size=setup.max_num_seqs,
            queue_depth_threshold=setup.queue_limit,
            weight=group.weight,
            max_in_flight=group.max_in_flight,
            topology_distance=group.topology_distance,
            profile=profile.name,
            kv=kv_shape(setup, group, block_tokens),
        )
        self._spread = setup.step_noise
        self._chance = np.random.default_rng(random.Random(f"noise {seed} {number}").getrandbits(64))
        self._noise: NDArray[np.float64] | None = None
        """Of its next steps: each one's own, however long the runs are, or else short ones would be done more often."""
        self.slow = group.slow
        """Its steps take so many times what the profile says, from the next one on."""
        self.alive = False
        self.incarnation = 0
        self.starts = 0
        """How often its process was started, whether it came up or not."""
        self.run = 0
        """Changes whenever the end of the run that it is in does: an end that was foreseen before is void."""
        self.end_ms = math.inf
        """End of the run that it is in; inf: it computes nothing."""
        self.in_run = False
        """The run that it is in has several steps."""
        self.flights: dict[str, Flight] = {}
        """That it answers, by the id of their request."""
        self.legs: dict[str, Flight] = {}
        """Whose prompt it computes, or whose KV it holds, for another worker, by the id of that here."""
        self.unread = True
        """It did something since its load was last read."""
        self.announcements: deque[Announcement] = deque()
        """KV events on their way to the ledger."""
        self._fresh: list[Announcement] = []
        """Those that nobody has sent on their way yet."""
        self._delay_ms = setup.kv_event_delay_ms if setup.kv_events else None
        self._engine = EngineModel(self._config)
        self._begin_ms = 0.0
        self._step: Step | None = None
        self._reports: list[tuple[int, int, Flight]] = []
        """Heap of steps since the start, when a flight's next report is due."""
        self._pushed = 0
        self._occupied_ms: float | None = None
        self._busy_ms = 0.0
        self._lately = BusyShare()
        self._gpu_ms = 0.0
        self._preemptions = 0
        self._requests = self._prompt_tokens = self._cached_tokens = self._output_tokens = 0

    @property
    def id(self) -> WorkerId:
        """As the ledger knows it."""
        return self.spec.id

    @property
    def engine(self) -> EngineModel:
        """The process that runs there now."""
        return self._engine

    def busy(self, now_ms: float) -> float:
        """Share of the last second or so in which it computed, as the utilisation of its GPUs is told."""
        return self._lately.share(now_ms, self._begin_ms if self.end_ms < math.inf else None)

    # ---- the process

    @property
    def occupied(self) -> bool:
        """Whether its process is up or starting."""
        return self._occupied_ms is not None

    def occupy(self, now_ms: float) -> None:
        """Its process begins to start: its GPUs are taken from now on."""
        self._occupied_ms = now_ms
        self.starts += 1

    def start(self) -> None:
        """It is up, with an empty cache."""
        self.alive = True
        self.incarnation += 1

    def change_role(self, role: Role) -> None:
        """It is for other stages from now on, and when it starts again."""
        self.spec = replace(self.spec, role=role)

    def die(self, now_ms: float, itl: IntervalCounter) -> Lost:
        """It is gone with all that it held; returns what was there, with the tokens that it got."""
        lost = Lost(list(self.flights.values()), list(self.legs.values()))
        self._break_off(now_ms, itl)
        self.close(now_ms)
        self.alive = False
        self._engine = EngineModel(self._config)
        self.flights.clear()
        self.legs.clear()
        self.announcements.clear()
        self._fresh.clear()
        self._reports.clear()
        return lost

    def _break_off(self, now_ms: float, itl: IntervalCounter) -> None:
        """Count what it did in the run that it is in."""
        step = self._step
        if step is not None:
            self._engine.look(now_ms)
            begun = step.begun_by(now_ms)
            self._count_intervals(step, begun - 1, step.decodes, itl)
            self._forget_noise(begun)
        for flight in self.flights.values():
            if flight.sequence is None or flight.first_token_ms is None:
                continue
            if flight.cached_tokens is None:
                self._prompt_tokens += flight.asked.prompt_tokens
                self._cached_tokens += flight.sequence.cached_tokens or 0
            self._output_tokens += flight.sequence.generated

    def close(self, now_ms: float) -> None:
        """Settle the totals."""
        if self.end_ms < math.inf:
            self._busy_ms += now_ms - self._begin_ms
            self._void()
        if self._occupied_ms is not None:
            self._gpu_ms += max(0.0, now_ms - self._occupied_ms) * self.group.profile.tensor_parallel
            self._occupied_ms = None
        self._preemptions += self._engine.preemptions

    # ---- work

    def take(self, flight: Flight, *, fetches: bool = False) -> None:
        """A request to answer; the run that it is in was cut before. Raises RequestRefusedError.

        `fetches`: it gets KV blocks, and waits until `fetched` says how much of the prompt has come.
        """
        (flight.sequence,) = self._engine.add(_asked(flight, flight.request.id, Stage.WHOLE, fetches=fetches))
        self.flights[flight.request.id] = flight
        self._requests += 1
        self.unread = True

    def take_prefill(self, flight: Flight, leg_id: str, *, fetches: bool = False) -> None:
        """A prompt to compute for another worker, and to hold. As `take`."""
        self._engine.add(_asked(flight, leg_id, Stage.PREFILL, fetches=fetches))
        self.legs[leg_id] = flight
        self._requests += 1
        self.unread = True

    def hold(self, flight: Flight, leg_id: str, most_tokens: int) -> int:
        """Keep what it has of the beginning of a prompt, so much at most: how many tokens. Cut its run before."""
        held = self._engine.hold(_asked(flight, leg_id, Stage.WHOLE), most_tokens)
        if held is None:
            return 0
        self.legs[leg_id] = flight
        return held.still_computed

    def let_go(self, leg_id: str) -> None:
        """Nobody needs what it computes or holds for another worker any more. Cut its run before."""
        if self.legs.pop(leg_id, None) is not None:
            self._engine.abort(leg_id)

    def begin(self, now_ms: float) -> bool:
        """Begin the next run of steps; False when there is nothing to compute."""
        if self._spread and (self._noise is None or len(self._noise) < MOST_STEPS):
            drawn = self._chance.lognormal(-self._spread * self._spread / 2, self._spread, _DRAWN)
            self._noise = drawn if self._noise is None else np.concatenate([self._noise, drawn])
        step = self._step = self._engine.begin_step(now_ms, MOST_STEPS, self.slow, self._noise)
        if step is None:
            return False
        self._begin_ms = now_ms
        self.end_ms = now_ms + step.duration_ms
        self.in_run = step.steps > 1
        self.run += 1
        return True

    def cut(self, now_ms: float) -> bool:
        """Something is about to happen: the run ends with the step that it is in. True when it would have gone on."""
        self.look(now_ms)
        end_ms = self._begin_ms + self._engine.cut_step(now_ms)
        if end_ms >= self.end_ms:
            return False
        self.end_ms = max(end_ms, now_ms)
        self.run += 1
        return True

    def finish(self, itl: IntervalCounter) -> StepResult:
        """The run ended, at `end_ms`."""
        step = self._step
        assert step is not None
        self.look(self.end_ms)
        result = self._engine.finish_step(self.end_ms)
        if self._delay_ms is not None and result.events:
            self._fresh.append((self.end_ms + self._delay_ms, result.events))
        self.unread = True
        self._busy_ms += self.end_ms - self._begin_ms
        self._lately.ran(self._begin_ms, self.end_ms)
        self._count_intervals(step, result.steps, result.decodes, itl, dict(result.resumed))
        self._forget_noise(result.steps)
        self._void()
        return result

    def _count_intervals(
        self, step: Step, steps: int, decodes: int, itl: IntervalCounter, resumed: Mapping[Sequence, float] = _NOBODY
    ) -> None:
        """Of the first `steps` of a run: `decodes` got a token in each, those that `resumed` after a pause one."""
        each_ms = step.each_ms(steps)
        if each_ms is not None:
            itl.add_each(each_ms, decodes)
        elif decodes:
            for length_ms, count in step.lengths(steps):
                itl.add(length_ms, decodes * count)
        for paused_ms in resumed.values():
            itl.add(paused_ms, 1)

    def _forget_noise(self, steps: int) -> None:
        """So many steps began."""
        if self._noise is not None:
            self._noise = self._noise[steps:]

    def _void(self) -> None:
        self.run += 1
        self._step = None
        self.end_ms = math.inf
        self.in_run = False

    def look(self, now_ms: float) -> None:
        """Bring what is known of the run that it is in up to `now_ms`, as if each of its steps were one."""
        delay_ms = self._delay_ms
        if delay_ms is None:
            self._engine.look(now_ms)
            return
        for end_ms, events in self._engine.take_step_events(now_ms, delay_ms):
            self._fresh.append((end_ms + delay_ms, events))

    def take_announcements(self) -> list[Announcement]:
        """KV events since the last call, in the order in which they are heard."""
        fresh, self._fresh = self._fresh, []
        return fresh

    # ---- tokens

    def started(self, flight: Flight) -> None:
        """A flight had its first token with the run that just ended: its next report comes with its 32nd."""
        self._report_after(flight, PROGRESS_EVERY_TOKENS - 1)

    def reports(self) -> list[tuple[Flight, int]]:
        """Flights whose report is due by now, and how many tokens are new."""
        due: list[tuple[Flight, int]] = []
        done = self._engine.steps_done
        while self._reports and self._reports[0][0] <= done:
            flight = heapq.heappop(self._reports)[2]
            if flight.sequence is None:
                continue
            new = flight.sequence.generated - flight.reported_tokens
            # More is new where nobody looked for a while, less where it was preempted meanwhile.
            rest = new % PROGRESS_EVERY_TOKENS
            if new > rest:
                due.append((flight, new - rest))
                flight.reported_tokens += new - rest
            self._report_after(flight, PROGRESS_EVERY_TOKENS - rest)
        return due

    def _report_after(self, flight: Flight, steps: int) -> None:
        self._pushed += 1
        heapq.heappush(self._reports, (self._engine.steps_done + steps, self._pushed, flight))

    def computed_prompt(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt is computed, for its answer here or for another worker."""
        self._prompt_tokens += prompt_tokens
        self._cached_tokens += cached_tokens

    def ended(self, flight: Flight, output_tokens: int) -> None:
        """A request is answered."""
        del self.flights[flight.request.id]
        self._output_tokens += output_tokens

    def totals(self) -> WorkerTotals:
        """After `close`."""
        return WorkerTotals(
            id=self.id,
            profile=self.group.profile.name,
            gpus=self.group.profile.tensor_parallel,
            busy_ms=self._busy_ms,
            gpu_ms=self._gpu_ms,
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=self._output_tokens,
            preemptions=self._preemptions,
        )


def _asked(flight: Flight, engine_id: str, stage: Stage, *, fetches: bool = False) -> LengthRequest:
    asked, prompt = flight.asked, flight.prompt
    return LengthRequest(
        engine_id,
        asked.prompt_tokens,
        asked.output_tokens,
        block_hashes=prompt.keys,
        answer_hashes=prompt.answer_keys,
        stage=stage,
        fetches=fetches,
    )
