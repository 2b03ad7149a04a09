"""Step times learned through the whole front end, from simulated engines."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from pointsman.core.ledger.events import Tick
from pointsman.core.model.errors import ConfigError
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.configuration.loader import load_text
from pointsman.edge.configuration.tree import ConfigTree
from pointsman.edge.serving import ticks as ticks_module
from pointsman.edge.serving.settings import FrontendSettings
from support.scripted_fleet import Fleet
from support.virtual.fleet import fleet_of
from support.virtual.loop import VirtualLoop, run_virtual

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


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "made.yaml"
    path.write_text(PROFILE)
    return path


def body(tokens: int, output: int, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    prompt = [rng.randrange(1000, 5000) for _ in range(tokens)]
    return {"model": "sim", "prompt": prompt, "max_tokens": output, "stream": True}


def test_what_is_learned_of_engines_is_shown(profile: Path) -> None:
    """In virtual time: what a busy machine would be learned to be is anybody's guess."""
    front = {"policy": "round_robin", "seed": 1, "tokenize": False}

    async def main(loop: VirtualLoop) -> None:
        async with fleet_of(loop, 2, engine={"profile": str(profile)}, frontend=front) as fleet:
            ledger, client = fleet.frontends[0].ledger, fleet.client
            assert fleet.engines[1].server is not None
            fleet.engines[1].server.state.runner.slow_factor = 1.6

            def workers():
                return sorted(ledger.snapshot().workers, key=lambda worker: worker.id)

            assert all(worker.times is None for worker in workers())
            rng = random.Random(4)
            for wave in range(3):
                lengths = [(rng.randint(30, 900), rng.randint(20, 50)) for _ in range(4)]
                asked = [body(*length, 10 * wave + i) for i, length in enumerate(lengths)]
                answers = [client.ask(fleet.url(), "POST", "/v1/completions", one) for one in asked]
                assert {answer.status for answer in await asyncio.gather(*answers)} == {200}
            await fleet.until(
                lambda: all(w.times is not None and w.times.step_error.samples >= 2 for w in workers()), 5.0
            )
            fast, slow = (worker.times for worker in workers())
            assert slow.factor / fast.factor == pytest.approx(1.6, rel=0.1)
            assert fast.step.step_ms(2, 1200, 0) == pytest.approx(TRUE.step_ms(2, 1200, 0), rel=0.1)
            shown = {worker["id"]: worker["times"] for worker in (await fleet.status(fleet.frontends[0]))["workers"]}
            assert shown["e1/0"]["factor"] == pytest.approx(slow.factor)
            assert shown["e1/0"]["a_ms"] == pytest.approx(slow.step.a_ms)
            assert shown["e1/0"]["step"]["samples"] == slow.step_error.samples
            metrics = (await client.ask(fleet.frontends[0].admin_url, "GET", "/metrics")).body.decode()
            for line in (
                'pointsman_time_model_error_ratio{predicted="step",worker="e0/0"}',
                'pointsman_time_model_worker_factor{worker="e1/0"}',
                'pointsman_time_model_coefficient{coefficient="d",worker="e1/0"}',
                'pointsman_time_model_samples{predicted="ttft",worker="e0/0"}',
            ):
                assert line in metrics

    run_virtual(main)


def test_profiles_are_read_when_the_front_end_is_set_up(profile: Path) -> None:
    nodes = f"[{{url: 'http://a:1', profile: '{profile}'}}, {{url: 'http://b:1', profile: h100/llama-8b}}]"
    settings = FrontendSettings.of(load_text(f"execution-group: {{nodes: {nodes}}}", "c.yaml", ConfigTree))
    assert settings.step_priors[str(profile)] == TRUE
    assert set(settings.step_priors) == {str(profile), "h100/llama-8b"}
    assert settings.sources[1].profile == "h100/llama-8b"


def test_an_unknown_profile_names_the_engine() -> None:
    tree = load_text("execution-group: {nodes: [{url: 'http://a:1', profile: h1000/llama}]}", "c.yaml", ConfigTree)
    with pytest.raises(ConfigError, match=r"engine a:1: profile: .*h1000/llama"):
        FrontendSettings.of(tree)


async def test_a_tick_that_fails_does_not_end_the_next_ones(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ticks_module, "TICK_S", 0.01)
    await fleet.engine("a")
    frontend = await fleet.open()
    faults = [ArithmeticError("singular"), ArithmeticError("singular")]
    apply = frontend.ledger.apply

    def failing(event: object) -> None:
        if isinstance(event, Tick) and faults:
            raise faults.pop()
        apply(event)  # type: ignore[arg-type]

    monkeypatch.setattr(frontend.ledger, "apply", failing)
    await fleet.until(lambda: sum("a tick failed" in record.message for record in caplog.records) == 2)
    assert not frontend._ticks._task.done()  # type: ignore[union-attr]
    said = [record for record in caplog.records if "a tick failed" in record.message]
    assert [record.exc_info is not None for record in said] == [True, False]
