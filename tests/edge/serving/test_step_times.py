"""Step times learned through the whole front end, from simulated engines in real time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.core.ledger.events import Tick
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from pointsman.edge.serving import ticks as ticks_module
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.fetch import Origin, UpstreamPool, fetch

TRUE = StepCoefficients(12.0, 0.4, 0.5, 0.06)
PROFILE = """
schema: 1
name: made
step: {a_ms: 12, b_ms_per_sequence: 0.4, c_ms_per_1000_context_tokens: 0.5, d_ms_per_prefill_token: 0.06}
kv_tokens: 100000
kv_bytes_per_token: 1000
gpu: none
model: sim
engine: sim
tensor_parallel: 1
source: a test
"""


class Sims:
    """Two engines, the second one slower, and a front end."""

    def __init__(self, stack: AsyncExitStack, profile: Path) -> None:
        self._stack = stack
        self._profile = profile
        self.pool = UpstreamPool()
        self.frontend: Frontend

    async def open(self, **settings: object) -> None:
        sims = [SimServer(SimSettings(profile=str(self._profile))) for _ in range(2)]
        for sim in sims:
            await sim.start()
            self._stack.push_async_callback(sim.close)
        sims[1].state.runner.slow_factor = 1.6
        sources = tuple(WorkerSource(name="ab"[i], url=sim.url) for i, sim in enumerate(sims))
        defaults = FrontendSettings(sources=sources, port=0, admin_port=0, policy="round_robin", seed=1, tokenize=False)
        self.frontend = Frontend(replace(defaults, **settings))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        async with asyncio.timeout(8):
            while len(self.workers()) < 2 or not all(worker.usable for worker in self.workers()):
                await asyncio.sleep(0.01)

    def workers(self):
        return sorted(self.frontend.ledger.snapshot().workers, key=lambda worker: worker.id)

    async def ask(self, tokens: int, output: int, seed: int) -> None:
        rng = random.Random(seed)
        prompt = [rng.randrange(1000, 5000) for _ in range(tokens)]
        body = {"model": "sim", "prompt": prompt, "max_tokens": output, "stream": True}
        data = json.dumps(body).encode()
        await fetch(self.pool, Origin.parse(self.frontend.url), "POST", "/v1/completions", body=data)

    async def status(self) -> dict:
        answer = await fetch(self.pool, Origin.parse(self.frontend.admin_url), "GET", "/v1/status")
        return json.loads(answer.body)

    async def metrics(self) -> str:
        answer = await fetch(self.pool, Origin.parse(self.frontend.admin_url), "GET", "/metrics")
        return answer.body.decode()


@pytest.fixture
async def sims(tmp_path: Path) -> AsyncIterator[Sims]:
    path = tmp_path / "made.yaml"
    path.write_text(PROFILE)
    async with AsyncExitStack() as stack:
        yield Sims(stack, path)


async def test_what_is_learned_of_engines_in_real_time_is_shown(sims: Sims) -> None:
    """About 3 s: some tokens have to be generated for there to be something to learn."""
    await sims.open()
    assert all(worker.times is None for worker in sims.workers())
    rng = random.Random(4)
    for wave in range(3):
        lengths = [(rng.randint(30, 900), rng.randint(20, 50)) for _ in range(4)]
        await asyncio.gather(*(sims.ask(*length, 10 * wave + i) for i, length in enumerate(lengths)))
    async with asyncio.timeout(5):
        while any(worker.times is None or worker.times.step_error.samples < 2 for worker in sims.workers()):
            await asyncio.sleep(0.02)
    fast, slow = (worker.times for worker in sims.workers())
    assert fast is not None
    assert slow is not None
    assert slow.factor / fast.factor == pytest.approx(1.6, rel=0.3)
    assert fast.step.step_ms(2, 1200, 0) == pytest.approx(TRUE.step_ms(2, 1200, 0), rel=0.3)
    shown = {worker["id"]: worker["times"] for worker in (await sims.status())["workers"]}
    assert shown["b/0"]["factor"] == pytest.approx(slow.factor)
    assert shown["b/0"]["a_ms"] == pytest.approx(slow.step.a_ms)
    assert shown["b/0"]["step"]["samples"] == slow.step_error.samples
    metrics = await sims.metrics()
    for line in (
        'pointsman_time_model_error_ratio{predicted="step",worker="a/0"}',
        'pointsman_time_model_worker_factor{worker="b/0"}',
        'pointsman_time_model_coefficient{coefficient="d",worker="b/0"}',
        'pointsman_time_model_samples{predicted="ttft",worker="a/0"}',
    ):
        assert line in metrics


def test_profiles_are_read_when_the_front_end_is_set_up(tmp_path: Path) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(PROFILE)
    nodes = f"[{{url: 'http://a:1', profile: '{path}'}}, {{url: 'http://b:1', profile: h100/llama-8b}}]"
    settings = FrontendSettings.of(load_text(f"execution-group: {{nodes: {nodes}}}", "c.yaml", ConfigTree))
    assert settings.step_priors[str(path)] == TRUE
    assert set(settings.step_priors) == {str(path), "h100/llama-8b"}
    assert settings.sources[1].profile == "h100/llama-8b"


def test_an_unknown_profile_names_the_engine() -> None:
    tree = load_text("execution-group: {nodes: [{url: 'http://a:1', profile: h1000/llama}]}", "c.yaml", ConfigTree)
    with pytest.raises(ConfigError, match=r"engine a:1: profile: .*h1000/llama"):
        FrontendSettings.of(tree)


async def test_a_tick_that_fails_does_not_end_the_next_ones(
    sims: Sims, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ticks_module, "TICK_S", 0.01)
    await sims.open()
    faults = [ArithmeticError("singular"), ArithmeticError("singular")]
    apply = sims.frontend.ledger.apply

    def failing(event: object) -> None:
        if isinstance(event, Tick) and faults:
            raise faults.pop()
        apply(event)  # type: ignore[arg-type]

    monkeypatch.setattr(sims.frontend.ledger, "apply", failing)
    async with asyncio.timeout(5):
        while faults:
            await asyncio.sleep(0.01)
    assert not sims.frontend._ticks._task.done()  # type: ignore[union-attr]
    said = [record for record in caplog.records if "a tick failed" in record.message]
    assert [record.exc_info is not None for record in said] == [True, False]
