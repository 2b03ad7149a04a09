"""The whole front end before engines that really compute: conversations, exact routing, streams that move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest

from pointsman.core.ledger.snapshot import WorkerSnapshot
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.embedded_servers import start_embedded

LIMIT_S = 20.0
EXACT: dict[str, Any] = {"ignore_eos": True}


class Fleet:
    """Engines `a`, `b` of one tiny model, a front end, and OpenAI's client."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.engines: list[EmbeddedServer] = []
        self.frontend: Frontend
        self.client: openai.AsyncOpenAI

    async def open(self) -> None:
        for _ in range(2):
            events = {"kv_events": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:*"}
            engine = await start_embedded(self._stack, block_size=16, num_blocks=600, max_model_len=4096, **events)
            self.engines.append(engine)
        sources = tuple(WorkerSource(name="ab"[n], url=engine.url) for n, engine in enumerate(self.engines))
        self.frontend = Frontend(
            FrontendSettings(sources=sources, port=0, admin_port=0, heartbeat_s=0.5, debug_headers=True, seed=1)
        )
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        await self.until(lambda: len(self.workers()) == 2 and all(w.usable and w.exact for w in self.workers()))
        self.client = openai.AsyncOpenAI(base_url=f"{self.frontend.url}/v1", api_key="none", max_retries=0)
        self._stack.push_async_callback(self.client.close)

    def workers(self) -> list[WorkerSnapshot]:
        return sorted(self.frontend.ledger.snapshot().workers, key=lambda worker: worker.id)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """The index is what the engines truly hold."""
        await self.until(
            lambda: (
                [worker.kv.blocks.get("gpu", 0) for worker in self.workers()]
                == [len(set(engine.state.runner.model.cached_hashes())) for engine in self.engines]
            )
        )

    async def ask(self, messages: list[Any], tokens: int = 12, pin: str | None = None, **fields: Any) -> Any:
        headers = {} if pin is None else {"x-pointsman-worker": pin}
        return await self.client.chat.completions.with_raw_response.create(
            model="m",
            messages=messages,
            max_tokens=tokens,
            temperature=0,
            extra_body=EXACT,
            extra_headers=headers,
            **fields,
        )


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        made = Fleet(stack)
        await made.open()
        yield made


def story(who: str, words: int = 80) -> dict[str, str]:
    return {"role": "user", "content": " ".join(f"{who} tells part {n} of a tale" for n in range(words // 7))}


async def test_conversations_stay_where_their_beginnings_are(fleet: Fleet) -> None:
    chance = random.Random(3)
    talks = {who: [story(who)] for who in ("Ada", "Grace", "Edsger", "Barbara")}
    at: dict[str, str] = {}
    lengths: dict[str, int] = {}
    for turn in range(4):
        for who in chance.sample(sorted(talks), len(talks)):
            raw = await fleet.ask(talks[who])
            answer = raw.parse()
            worker = raw.headers["x-pointsman-worker"]
            cached = answer.usage.prompt_tokens_details.cached_tokens
            if turn:
                assert worker == at[who], f"{who} was sent away in turn {turn}"
                # All of the last prompt is there, but for what does not fill a block.
                assert cached >= lengths[who] // 16 * 16
            at[who], lengths[who] = worker, answer.usage.prompt_tokens
            talks[who].append({"role": "assistant", "content": answer.choices[0].message.content})
            talks[who].append({"role": "user", "content": f"and then, {turn}?"})
            await fleet.settled()
    assert len(set(at.values())) == 2, "one engine has everybody"
    totals = fleet.frontend.ledger.snapshot().totals
    assert totals.predicted_cached_tokens == totals.reported_cached_tokens > 1000


async def test_an_answer_is_the_same_wherever_it_comes_from_and_whatever_is_cached(fleet: Fleet) -> None:
    seen = []
    for pin in ("a/0", "b/0", "a/0"):
        raw = await fleet.ask([story("Ada")], 40, pin)
        seen.append((raw.parse().choices[0].message.content, raw.parse().usage.prompt_tokens_details.cached_tokens))
    assert seen[0][0] == seen[1][0] == seen[2][0]
    assert seen[0][1] == seen[1][1] == 0 < seen[2][1]


async def test_a_stream_goes_on_by_its_token_ids_where_its_engine_dies(fleet: Fleet) -> None:
    tokens = 200
    whole = (await fleet.ask([story("Ada")], tokens, "b/0")).parse().choices[0].message.content
    raw = await fleet.ask([story("Ada")], tokens, stream=True, stream_options={"include_usage": True})
    first = raw.headers["x-pointsman-worker"]
    dies = fleet.engines["ab".index(first[0])]
    text, usage, reason, pieces = "", None, None, 0
    async for event in raw.parse():
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            pieces += 1
            if pieces == 20:
                await dies.close()
    assert text == whole
    assert (reason, usage.completion_tokens) == ("length", tokens)
    assert fleet.frontend.traffic.migrations["token_ids", "finished"] == 1
    await fleet.until(lambda: all(worker.running == 0 for worker in fleet.workers()))
