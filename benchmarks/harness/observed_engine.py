"""An engine model under load, as a front end sees it: dispatch, first token, a report now and then, the end."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.engine import EngineModel
from pointsman.core.engine_model.request import LengthRequest
from pointsman.core.engine_model.sequence import Sequence as EngineSequence
from pointsman.core.timing.interval import Interval
from pointsman.core.timing.observer import ObservedLoad, WorkerObserver


@dataclass(frozen=True, slots=True)
class Job:
    """One request."""

    at_ms: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """One request that is done. `span`: its own time from the first token to the last, None for a short one.

    `load`: what was in flight when it was sent, as far as a front end knew.
    """

    number: int
    job: Job
    first_ms: float
    end_ms: float
    load: ObservedLoad
    span: Interval | None
    intervals: tuple[Interval, ...]
    """What a front end learned since the request before it ended."""

    @property
    def ttft_ms(self) -> float:
        return self.first_ms - self.job.at_ms

    @property
    def tpot_ms(self) -> float:
        return (self.end_ms - self.first_ms) / max(1, self.job.output_tokens - 1)


def poisson_jobs(
    rng: random.Random, count: int, rate_per_s: float, prompt: tuple[int, int], output: tuple[int, int]
) -> list[Job]:
    """Requests at random moments; lengths uniform between two bounds."""
    now_ms, jobs = 0.0, []
    for _ in range(count):
        now_ms += rng.expovariate(rate_per_s) * 1000
        jobs.append(Job(now_ms, rng.randint(*prompt), rng.randint(*output)))
    return jobs


def serve(
    config: EngineConfig,
    jobs: Sequence[Job],
    *,
    report_every: int | None = 16,
    noise: float = 0.0,
    rng: random.Random | None = None,
    slow: float = 1.0,
    overhead_ms: float = 0.0,
) -> list[Served]:
    """Run the jobs. `report_every`: tokens from one report to the next, None = only at the end, as in a log.

    `noise`: relative standard deviation of a step. `overhead_ms`: half before the engine gets a request, half after
    its tokens are made.
    """
    engine, rng = EngineModel(config), rng or random.Random(0)
    observer, spans = WorkerObserver(config.max_batched_tokens), WorkerObserver(config.max_batched_tokens)
    events: list[tuple[float, int, int, str, int]] = []
    for number, job in enumerate(jobs):
        heapq.heappush(events, (job.at_ms, number, number, "start", 0))
    way_ms, order = overhead_ms / 2, len(jobs)
    waiting = sorted(((job.at_ms + way_ms, number) for number, job in enumerate(jobs)), reverse=True)
    decoding: dict[int, EngineSequence] = {}
    generated: dict[int, int] = {}
    now_ms = 0.0
    while waiting or not engine.idle:
        while waiting and waiting[-1][0] <= now_ms:
            _, number = waiting.pop()
            engine.add(LengthRequest(str(number), jobs[number].prompt_tokens, jobs[number].output_tokens))
        step = engine.begin_step(now_ms, slow=slow)
        if step is None:
            now_ms = waiting[-1][0]
            continue
        now_ms += step.duration_ms * max(0.2, rng.gauss(1.0, noise) if noise else 1.0)
        running = [number for number, sequence in decoding.items() if sequence.preempted_ms is None]
        result = engine.finish_step(now_ms)
        for number in running:
            generated[number] += 1
            if report_every and generated[number] % report_every == 0:
                order += 1
                heapq.heappush(events, (now_ms + way_ms, order, number, "tokens", report_every))
        for sequence in result.first:
            number = int(sequence.request.id)
            decoding[number], generated[number], order = sequence, 1, order + 1
            heapq.heappush(events, (now_ms + way_ms, order, number, "first", 0))
        for sequence in result.finished:
            number, order = int(sequence.request.id), order + 1
            del decoding[number]
            heapq.heappush(events, (now_ms + way_ms, order, number, "end", 0))
    return _seen(events, jobs, observer, spans)


def _seen(
    events: list[tuple[float, int, int, str, int]], jobs: Sequence[Job], observer: WorkerObserver, spans: WorkerObserver
) -> list[Served]:
    done: list[Served] = []
    first_ms: dict[int, float] = {}
    loads: dict[int, ObservedLoad] = {}
    learned: list[Interval] = []
    while events:
        at_ms, _, number, kind, count = heapq.heappop(events)
        found = None
        if kind == "start":
            loads[number] = observer.load(at_ms)
            for one in (observer, spans):
                one.started(str(number), at_ms, jobs[number].prompt_tokens)
        elif kind == "first":
            first_ms[number] = at_ms
            spans.first_token(str(number), at_ms)
            found = observer.first_token(str(number), at_ms)
        elif kind == "tokens":
            found = observer.tokens(str(number), count, at_ms)
        else:
            span = spans.ended(str(number), at_ms, output_tokens=jobs[number].output_tokens)
            found = observer.ended(str(number), at_ms, output_tokens=jobs[number].output_tokens)
            if found is not None:
                learned.append(found)
            done.append(Served(number, jobs[number], first_ms[number], at_ms, loads[number], span, tuple(learned)))
            learned, found = [], None
        if found is not None:
            learned.append(found)
    return done
