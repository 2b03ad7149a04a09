"""A live engine is asked no more than what was said, and its speed is found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import cast

import aiohttp
import pytest

from pointsman.app.calibration.fit import fit
from pointsman.app.calibration.probe import Probe
from pointsman.app.calibration.probe_plan import Ask, ProbePlan, probe_plan, random_text
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.model.errors import CalibrationError
from pointsman.core.timing.profiles import profile
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.engines.timed_completion import CompletionClient, TimedCompletion

SPEEDUP = 4.0


@pytest.fixture
async def engine_url() -> AsyncIterator[str]:
    server = SimServer(SimSettings(profile="tiny", speedup=SPEEDUP, num_blocks=2048, max_model_len=4096))
    await server.start()
    yield server.url
    await server.close()


@pytest.mark.parametrize(("tokens", "sequences"), [(5_000, 4), (20_000, 8), (100_000, 16)])
def test_a_plan_stays_within_its_limits(tokens: int, sequences: int) -> None:
    plan = probe_plan(most_prompt_tokens=1024, most_sequences=sequences, most_tokens=tokens)
    assert plan.tokens <= tokens
    assert max(len(asks) for asks in plan.rounds) <= sequences
    assert max(ask.words for asks in plan.rounds for ask in asks) <= 1024
    assert [len(asks) for asks in plan.rounds] == sorted(len(asks) for asks in plan.rounds)


def test_limits_that_leave_nothing_to_learn_are_refused() -> None:
    with pytest.raises(CalibrationError, match="prompts of up to 10 tokens"):
        probe_plan(most_prompt_tokens=10, most_sequences=4, most_tokens=5_000)
    with pytest.raises(CalibrationError, match="200 tokens are too few"):
        probe_plan(most_prompt_tokens=1024, most_sequences=4, most_tokens=200)


def test_no_two_prompts_begin_alike() -> None:
    rng = random.Random(0)
    assert len({random_text(100, rng)[:60] for _ in range(500)}) == 500


async def test_the_speed_of_a_live_engine_is_found(engine_url: str) -> None:
    plan = probe_plan(most_prompt_tokens=512, most_sequences=4, most_tokens=6_000)
    async with aiohttp.ClientSession() as session:
        probe = Probe(CompletionClient(session, engine_url, "sim"), plan, random.Random(0), most_s=60)
        await probe.run()
    measured = probe.measured()
    assert len(measured) == plan.requests
    truth = profile("tiny").step
    engine = EngineConfig(step=truth, num_blocks=2048, max_model_len=4096)
    found = fit((measured,), engine, ahead=False, start=truth).parameters.step
    # A busy machine makes steps longer, never shorter.
    assert 0.9 < SPEEDUP * found.step_ms(1, 200, 0) / truth.step_ms(1, 200, 0) < 1.3
    assert 0.85 < SPEEDUP * found.d_ms_per_prefill_token / truth.d_ms_per_prefill_token < 1.3


async def test_what_came_before_a_cancellation_stays(engine_url: str) -> None:
    plan = probe_plan(most_prompt_tokens=256, most_sequences=8, most_tokens=50_000)
    enough = asyncio.Event()
    async with aiohttp.ClientSession() as session:
        probe = Probe(CompletionClient(session, engine_url, "sim"), plan, random.Random(0), most_s=60)
        running = asyncio.ensure_future(probe.run(lambda done: enough.set() if done == 3 else None))
        await enough.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert 2 <= len(probe.answers) < plan.requests
    with pytest.raises(CalibrationError, match="answers came, 8 are needed"):
        probe.measured()


async def test_it_ends_when_its_time_is_over(engine_url: str) -> None:
    plan = probe_plan(most_prompt_tokens=256, most_sequences=8, most_tokens=50_000)
    async with aiohttp.ClientSession() as session:
        probe = Probe(CompletionClient(session, engine_url, "sim"), plan, random.Random(0), most_s=0.0)
        await probe.run()
    assert probe.timed_out
    assert len(probe.answers) <= 1


class Stalling:
    """An engine whose fourth answer and all later ones begin but never end."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, prompt: str, output_tokens: int, on_first: Callable[[], None]) -> TimedCompletion:
        self.asked += 1
        on_first()
        if self.asked > 3:
            await asyncio.Event().wait()
        return TimedCompletion(0.0, 0.1, 0.2, 64, output_tokens, None)


async def test_a_round_that_hangs_ends_with_the_time_and_is_not_looked_at() -> None:
    engine = Stalling()
    plan = ProbePlan(((Ask(64, 4),), (Ask(64, 4),) * 4))
    probe = Probe(cast(CompletionClient, engine), plan, random.Random(0), most_s=0.05)
    await probe.run()
    assert engine.asked == 5
    assert probe.timed_out
    # Two answers of the second round came, beside two of which nothing is known.
    assert len(probe.answers) == 1
