from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.events import AllBlocksCleared, KvEvent
from pointsman.core.engine_model.request import EngineRequest
from pointsman.core.timing.step import StepCoefficients
from pointsman.edge.engines.openai_server.metrics import ServerMetrics
from pointsman.edge.engines.sim.runner import EngineRunner


class Sink:
    def __init__(self, fail_at: int | None = None) -> None:
        self.tokens: list[int] = []
        self.times_s: list[float] = []
        self.ended = asyncio.get_running_loop().create_future()
        self._fail_at = fail_at

    def on_token(self, token: int, last: bool) -> None:
        if len(self.tokens) == self._fail_at:
            raise OSError("pipe broken")
        self.tokens.append(token)
        self.times_s.append(asyncio.get_running_loop().time())
        if last:
            self.ended.set_result(None)

    def on_error(self, error: Exception) -> None:
        self.ended.set_exception(error)


MakeRunner = Callable[..., tuple[EngineRunner, ServerMetrics, list[KvEvent]]]


@pytest.fixture
def make_runner() -> MakeRunner:
    def make(step_ms: float = 0.0, speedup: float = 1.0) -> tuple[EngineRunner, ServerMetrics, list[KvEvent]]:
        metrics, events = ServerMetrics(0.0), []
        config = EngineConfig(StepCoefficients(step_ms, 0, 0, 0), num_blocks=64, block_size=4, max_model_len=256)
        return EngineRunner(config, speedup, events.extend, metrics), metrics, events

    return make


async def test_steps_take_their_modelled_time_and_errors_do_not_add_up(make_runner: MakeRunner) -> None:
    runner, metrics, _ = make_runner(step_ms=300.0, speedup=100)
    sink = Sink()
    began = asyncio.get_running_loop().time()
    runner.submit(EngineRequest("a", [1, 2], 30), [sink])
    await sink.ended
    # 30 steps of 3 real milliseconds; a late one makes the next one shorter.
    assert asyncio.get_running_loop().time() - began >= 0.087
    assert len(sink.tokens) == 30
    assert (metrics.ttft_s.count, metrics.itl_s.count, metrics.e2e_s.count) == (1, 29, 1)


async def test_requests_of_one_turn_share_their_steps(make_runner: MakeRunner) -> None:
    runner, _, _ = make_runner()
    sinks = [Sink() for _ in range(5)]
    for number, sink in enumerate(sinks):
        runner.submit(EngineRequest(str(number), [1, number], 6), [sink])
    await asyncio.gather(*(sink.ended for sink in sinks))
    assert runner.engine.counters.steps == 6


async def test_a_sink_that_fails_stops_nobody_else(make_runner: MakeRunner, caplog: pytest.LogCaptureFixture) -> None:
    runner, _, _ = make_runner()
    broken, good = Sink(fail_at=2), Sink()
    with caplog.at_level(logging.ERROR):
        runner.submit(EngineRequest("broken", [1], 9), [broken])
        runner.submit(EngineRequest("good", [2], 9), [good])
        await good.ended
    with pytest.raises(OSError, match="pipe broken"):
        await broken.ended
    assert (len(broken.tokens), len(good.tokens)) == (2, 9)
    assert runner.engine.idle
    assert "tokens of request broken could not be written" in caplog.text


async def test_aborted_and_stopped_sequences_hear_nothing_more(make_runner: MakeRunner) -> None:
    runner, _, _ = make_runner()
    aborted, other, late = Sink(), Sink(), Sink()
    (sequence,) = runner.submit(EngineRequest("a", [1], 50), [aborted])
    runner.submit(EngineRequest("b", [2], 5), [other])
    runner.abort(sequence)
    await other.ended
    assert aborted.tokens == []
    runner.submit(EngineRequest("c", [3], 50), [late])
    runner.stop()
    for _ in range(5):
        await asyncio.sleep(0)
    assert late.tokens == []


async def test_a_sink_may_submit_the_next_request(make_runner: MakeRunner) -> None:
    runner, _, _ = make_runner()
    second = Sink()

    class Chain(Sink):
        def on_token(self, token: int, last: bool) -> None:
            super().on_token(token, last)
            if last:
                runner.submit(EngineRequest("second", [2], 4), [second])

    runner.submit(EngineRequest("first", [1], 4), [Chain()])
    await second.ended
    assert len(second.tokens) == 4
    assert runner.engine.counters.steps == 8


async def test_a_machine_that_is_too_slow_says_so(make_runner: MakeRunner, caplog: pytest.LogCaptureFixture) -> None:
    runner, _, _ = make_runner(step_ms=1.0, speedup=1e7)
    sink = Sink()
    with caplog.at_level(logging.WARNING):
        runner.submit(EngineRequest("a", [1], 200), [sink])
        await sink.ended
    assert len(sink.tokens) == 200
    late = "too slow for speedup 1e+07" in caplog.text
    assert late == (runner.behind_ms > 0)


async def test_a_cache_reset_is_published_at_once(make_runner: MakeRunner) -> None:
    runner, _, events = make_runner()
    sink = Sink()
    runner.submit(EngineRequest("a", list(range(9)), 2), [sink])
    assert runner.reset_prefix_cache()
    await sink.ended
    assert isinstance(events[0], AllBlocksCleared)
    stored = len(events)
    assert stored > 1
    assert runner.reset_prefix_cache()
    assert isinstance(events[-1], AllBlocksCleared)
