"""Probe: a live engine is asked what a plan says; what it did becomes a measurement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from pointsman.app.calibration.measurement import LEAST_REQUESTS, Measurement, measurement
from pointsman.app.calibration.probe_plan import Ask, ProbePlan, random_text
from pointsman.core.model.errors import CalibrationError
from pointsman.core.workload.trace import TraceRequest
from pointsman.edge.engines.timed_completion import CompletionClient, TimedCompletion
from pointsman.edge.traces.observed import Observed

OnAnswer = Callable[[int], None]
"""Called with the number of answers so far."""


class Probe:
    """One run of a plan. `run` may be cancelled: the answers of rounds that were whole stay in `answers`.

    Those of a round that was cut off shared the engine with requests of which nothing is known.
    """

    def __init__(self, client: CompletionClient, plan: ProbePlan, rng: random.Random, *, most_s: float) -> None:
        self.answers: list[TimedCompletion] = []
        self.timed_out = False
        """Whether the time was over before the plan."""
        self._client = client
        self._plan = plan
        self._rng = rng
        self._most_s = most_s

    async def run(self, on_answer: OnAnswer = lambda _: None) -> None:
        """Ask round by round. Raises EngineError as soon as one answer fails."""
        try:
            async with asyncio.timeout(self._most_s):
                for asks in self._plan.rounds:
                    self.answers += await self._round(asks, on_answer)
        except TimeoutError:
            self.timed_out = True

    async def _round(self, asks: tuple[Ask, ...], on_answer: OnAnswer) -> list[TimedCompletion]:
        answers: list[TimedCompletion] = []

        async def one(ask: Ask, begun: asyncio.Event) -> None:
            text = random_text(ask.words, self._rng)
            answers.append(await self._client.ask(text, ask.output_tokens, begun.set))
            on_answer(len(self.answers) + len(answers))

        async with asyncio.TaskGroup() as group:
            for ask in asks:
                begun = asyncio.Event()
                group.create_task(one(ask, begun))
                await begun.wait()
        return answers

    def measured(self) -> Measurement:
        """What it is worth. Raises CalibrationError when too little has come."""
        if len(self.answers) < LEAST_REQUESTS:
            raise CalibrationError(
                f"only {len(self.answers)} answers came, {LEAST_REQUESTS} are needed: give it more time or tokens"
            )
        rows = []
        for answer in self.answers:
            observed = Observed(
                arrival_ms=1000 * answer.sent_s,
                first_token_ms=1000 * answer.first_s,
                last_token_ms=1000 * answer.last_s,
                prompt_tokens=answer.prompt_tokens,
                output_tokens=answer.output_tokens,
                cached_tokens=answer.cached_tokens,
            )
            rows.append((TraceRequest(0.0, answer.prompt_tokens, answer.output_tokens), observed))
        return measurement(rows)
