"""The front end before engines that really compute and really pass KV on: answers stay the same, nothing stays held."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.core.model.transfer import TransferMode, TransferRules
from pointsman.core.model.worker import Role
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.embedded_servers import start_embedded

LIMIT_S = 30.0
COMPLETION = {"model": "m", "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}


def counted(worker: WorkerSnapshot) -> int:
    """What the ledger thinks that a worker has."""
    return worker.running + worker.queued + worker.kv_tokens + worker.transfers_in + worker.transfers_out


class Apart:
    """One engine for prompts, one for answers, and a front end that always splits."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.engines: dict[str, EmbeddedServer] = {}
        self.http: aiohttp.ClientSession
        self.frontend: Frontend

    async def open(self) -> None:
        for name in ("p", "d"):
            events = {"kv_events": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:*"}
            self.engines[name] = await start_embedded(self._stack, block_size=16, max_model_len=2048, **events)
        roles = {"p": Role.PREFILL, "d": Role.DECODE}
        sources = tuple(
            WorkerSource(name=name, url=engine.url, role=roles[name]) for name, engine in self.engines.items()
        )
        rules = TransferRules(TransferMode.ALWAYS)
        self.frontend = Frontend(FrontendSettings(sources=sources, port=0, admin_port=0, seed=1, transfer=rules))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        await self.until(
            lambda: sum(w.spec.kv is not None and w.exact for w in self.frontend.ledger.snapshot().workers) == 2
        )
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def ask(self, url: str, prompt: list[int], **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
        async with self.http.post(f"{url}/v1/completions", json={**COMPLETION, "prompt": prompt, **more}) as answer:
            assert answer.status == 200, await answer.text()
            return json.loads(await answer.text()), dict(answer.headers)

    async def at_rest(self) -> None:
        """No block is held at either engine, nothing is counted at either worker."""
        models = [engine.state.runner.model for engine in self.engines.values()]
        await self.until(lambda: all((m.kv_use, m.held, m.idle) == (0, 0, True) for m in models))
        await self.until(lambda: not any(map(counted, self.frontend.ledger.snapshot().workers)))


@pytest.fixture
async def apart() -> AsyncIterator[Apart]:
    async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
        fleet = Apart(stack)
        await fleet.open()
        yield fleet


async def test_answers_are_those_of_one_engine_and_the_prompt_is_computed_once(apart: Apart) -> None:
    decode = apart.engines["d"].state.runner.model.counters
    for number in range(4):
        prompt = [(place * 13 + number * 101) % 250 + 5 for place in range(100 + number * 33)]
        before = decode.prompt_tokens_transferred
        answer, headers = await apart.ask(apart.frontend.url, prompt)
        assert (headers["x-pointsman-prefill-worker"], headers["x-pointsman-worker"]) == ("p/0", "d/0")
        assert decode.prompt_tokens_transferred - before == len(prompt) - 1
        await apart.at_rest()
        alone, _ = await apart.ask(apart.engines["p"].url, prompt)
        assert answer["choices"] == alone["choices"]
        assert answer["usage"]["completion_tokens"] == 24


async def test_a_prompt_that_the_decode_side_holds_is_fetched_only_as_far_as_it_lacks_it(apart: Apart) -> None:
    prompt = [(place * 17) % 250 + 5 for place in range(160)]
    await apart.ask(apart.frontend.url, prompt)
    decode = apart.engines["d"].state.runner.model.counters
    before = decode.prompt_tokens_transferred
    longer = [*prompt, *range(5, 45)]
    answer, _ = await apart.ask(apart.frontend.url, longer)
    assert decode.prompt_tokens_transferred - before <= len(longer) - 160
    alone, _ = await apart.ask(apart.engines["p"].url, longer)
    assert answer["choices"] == alone["choices"]
    await apart.at_rest()


async def test_a_source_that_is_killed_between_the_legs_costs_nothing_but_time(apart: Apart) -> None:
    prompt = [(place * 19) % 250 + 5 for place in range(120)]
    expected, _ = await apart.ask(apart.engines["d"].url, prompt)
    decode = apart.engines["d"].state.runner
    assert decode.reset_prefix_cache()
    transfers: Any = decode.transfers
    prepared = transfers.prepared

    def closes_first(request: Any) -> Any:
        apart.engines["p"].state.runner.transfers.leases.release_all()  # type: ignore[union-attr]
        return prepared(request)

    transfers.prepared = closes_first
    answer, _ = await apart.ask(apart.frontend.url, prompt)
    assert answer["choices"] == expected["choices"]
    assert decode.model.counters.prompt_tokens_transferred == 0
    await apart.at_rest()
