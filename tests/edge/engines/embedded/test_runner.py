from __future__ import annotations

import asyncio

import pytest

from pointsman.core.engine_model.engine import RequestRefusedError
from pointsman.core.engine_model.events import AllBlocksCleared, BlockStored, KvEvent
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.computed_sequence import SampledRequest
from pointsman.edge.engines.embedded.runner import EmbeddedRunner
from pointsman.edge.engines.embedded.sampling import Chosen
from pointsman.edge.engines.embedded.seeded_weights import tiny_config
from support.embedded_models import BLOCK_SIZE, decoder, embedded_engine, greedy

MODEL = decoder(tiny_config(300))
LIMIT_S = 20


class Sink:
    """Keeps what comes; with `breaks_after` it raises then."""

    def __init__(self, breaks_after: int | None = None) -> None:
        self.tokens: list[int] = []
        self.error: Exception | None = None
        self.ended = asyncio.Event()
        self.breaks_after = breaks_after

    def on_token(self, token: int, last: bool, chosen: Chosen | None = None) -> None:
        if len(self.tokens) == self.breaks_after:
            raise RuntimeError("nobody reads this")
        self.tokens.append(token)
        if last:
            self.ended.set()

    def on_error(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


async def ended(*sinks: Sink) -> None:
    async with asyncio.timeout(LIMIT_S):
        for sink in sinks:
            await sink.ended.wait()


async def test_requests_side_by_side_get_their_own_tokens() -> None:
    events: list[KvEvent] = []
    runner = EmbeddedRunner(embedded_engine(MODEL), events.extend)
    prompts = {name: [number * 11 + n for n in range(20)] for number, name in enumerate("abcde")}
    sinks = {name: Sink() for name in prompts}
    for name, prompt in prompts.items():
        runner.submit(SampledRequest(name, prompt, 16), [sinks[name]])
        await asyncio.sleep(0.002)
    await ended(*sinks.values())
    for name, prompt in prompts.items():
        assert sinks[name].tokens == greedy(MODEL, prompt, 16)
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert stored[0].token_ids == tuple(prompts["a"][:BLOCK_SIZE])
    assert runner.engine.model.idle
    assert 0 <= runner.busy <= 1
    assert runner.reset_prefix_cache()
    assert isinstance(events[-1], AllBlocksCleared)
    await runner.stop()


async def test_an_aborted_sequence_hears_nothing_more_and_others_go_on() -> None:
    runner = EmbeddedRunner(embedded_engine(MODEL), lambda events: None)
    left, stays = Sink(), Sink()
    (gone,) = runner.submit(SampledRequest("a", [1, 2, 3], 200), [left])
    runner.submit(SampledRequest("b", [4, 5, 6], 40), [stays])
    async with asyncio.timeout(LIMIT_S):
        while not left.tokens:
            await asyncio.sleep(0.001)
    runner.abort(gone)
    heard = len(left.tokens)
    await ended(stays)
    assert len(left.tokens) == heard < 200
    assert stays.tokens == greedy(MODEL, [4, 5, 6], 40)
    assert runner.engine.model.idle
    await runner.stop()


async def test_a_stream_that_breaks_takes_no_other_with_it(caplog: pytest.LogCaptureFixture) -> None:
    runner = EmbeddedRunner(embedded_engine(MODEL), lambda events: None)
    broken, whole = Sink(breaks_after=2), Sink()
    runner.submit(SampledRequest("a", [1, 2, 3], 30), [broken])
    runner.submit(SampledRequest("b", [4, 5, 6], 30), [whole])
    await ended(broken, whole)
    assert isinstance(broken.error, RuntimeError)
    assert len(broken.tokens) == 2
    assert whole.tokens == greedy(MODEL, [4, 5, 6], 30)
    assert runner.engine.model.idle
    assert "could not be written" in caplog.text
    await runner.stop()


async def test_a_step_that_fails_ends_all_requests_and_empties_the_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[KvEvent] = []
    runner = EmbeddedRunner(embedded_engine(MODEL), events.extend)
    prompt = list(range(2 * BLOCK_SIZE + 3))

    def broken(work: object) -> None:
        raise FloatingPointError("no such number")

    monkeypatch.setattr(runner.engine, "compute", broken)
    lost = Sink()
    runner.submit(SampledRequest("a", prompt, 30), [lost])
    await ended(lost)
    assert isinstance(events[-1], AllBlocksCleared), "what it had announced was never computed"
    assert lost.error is not None
    assert lost.tokens == []
    assert "no such number" in caplog.text
    monkeypatch.undo()
    next_one = Sink()
    (sequence,) = runner.submit(SampledRequest("b", prompt, 30), [next_one])
    await ended(next_one)
    assert sequence.cached_tokens == 0
    assert next_one.tokens == greedy(MODEL, prompt, 30)
    await runner.stop()


@pytest.mark.parametrize("where", ["begin", "finish"])
async def test_books_that_are_wrong_stop_the_engine_and_nobody_waits_for_ever(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = EmbeddedRunner(embedded_engine(MODEL), lambda _: None)

    def broken(now_ms: float) -> None:
        raise EngineError("books and pages disagree")

    monkeypatch.setattr(runner.engine, where, broken)
    lost = Sink()
    (sequence,) = runner.submit(SampledRequest("a", [1, 2, 3], 30), [lost])
    await ended(lost)
    assert lost.error is not None
    assert "books and pages disagree" in caplog.text
    runner.abort(sequence)
    with pytest.raises(EngineError, match="its log says why"):
        runner.submit(SampledRequest("b", [1, 2, 3], 30), [Sink()])
    await runner.stop()


async def test_events_that_can_not_be_told_lose_no_token_in_silence() -> None:
    def broken(events: list[KvEvent]) -> None:
        raise OSError("no socket")

    runner = EmbeddedRunner(embedded_engine(MODEL), broken)
    sink = Sink()
    runner.submit(SampledRequest("a", list(range(BLOCK_SIZE + 1)), 30), [sink])
    await ended(sink)
    assert sink.error is not None
    assert runner.broken
    await runner.stop()


async def test_what_can_not_be_computed_is_refused() -> None:
    runner = EmbeddedRunner(embedded_engine(MODEL), lambda events: None)
    with pytest.raises(RequestRefusedError, match="no room for an answer"):
        runner.submit(SampledRequest("a", [0] * 256, 5), [Sink()])
    await runner.stop()
