"""An engine's request ends when its client closes the connection: what cancelling through pointsman rests on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.http import EngineHttp

pytestmark = pytest.mark.engines

LIMIT_S = 120.0
LONG = {"model": "tiny", "max_tokens": 3500, "ignore_eos": True, "temperature": 0}
CHAT = {**LONG, "messages": [{"role": "user", "content": "Tell me everything."}]}
TEXT = {**LONG, "prompt": "Once upon a time"}


async def running(adapter: EngineAdapter, http: EngineHttp) -> int:
    (reading,) = await adapter.read_load(http)
    return reading.running + reading.waiting


async def until(adapter: EngineAdapter, http: EngineHttp, wanted: int, limit_s: float) -> None:
    """Waits until so many requests are there; fails after the limit."""
    start = time.monotonic()
    while (seen := await running(adapter, http)) != wanted:
        assert time.monotonic() - start < limit_s, f"{seen} requests after {limit_s} s, not {wanted}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def beside(client: aiohttp.ClientSession, url: str, tokens: int) -> AsyncIterator[asyncio.Task[None]]:
    """A stream that the engine computes meanwhile; done when it has ended."""

    async def read() -> None:
        body = {**TEXT, "stream": True, "max_tokens": tokens}
        async with client.post(url + "/v1/completions", json=body) as answer:
            async for _ in answer.content:
                pass

    reading = asyncio.create_task(read())
    try:
        yield reading
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, 1),
        ("/v1/completions", {**TEXT, "stream": True}, 1),
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 2, "temperature": 1, "max_tokens": 2000}, 2),
    ],
    ids=["chat stream", "completion stream", "chat at once", "n=2"],
)
async def test_closing_the_connection_aborts(server, http, path, body, requests):
    """At once, but for SGLang without a stream: it looks only every 4 s whether the client is still there."""
    adapter, _ = await detect(http)
    headers = {} if server.key is None else {"Authorization": f"Bearer {server.key}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=None)) as client:
        # Where cores are shared a call can be over before the engine tells of it, or the other one before it is closed.
        for _ in range(8):
            await until(adapter, http, 0, LIMIT_S)
            async with beside(client, server.url, body["max_tokens"] - 500) as other:
                if await gone_before(other, adapter, http, client, server.url + path, body, requests):
                    return
    pytest.fail("it was never gone before a stream that began earlier and is shorter")


async def gone_before(
    other: asyncio.Task[None],
    adapter: EngineAdapter,
    http: EngineHttp,
    client: aiohttp.ClientSession,
    url: str,
    body: dict[str, object],
    requests: int,
) -> bool:
    """Whether a call that is computed, and then is closed, is gone while the other one, that ends first, goes on."""
    if not await seen(adapter, http, 1, other):
        return False
    call = asyncio.create_task(client.post(url, json=body))
    try:
        if not await seen(adapter, http, 1 + requests, other):
            return False
        if body.get("stream"):
            await (await call).content.readany()
            (await call).close()
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    # Were it the other one that has ended, that would be heard while the engine is asked some times more.
    return all([await seen(adapter, http, 1, other) for _ in range(10)])


async def seen(adapter: EngineAdapter, http: EngineHttp, wanted: int, other: asyncio.Task[None]) -> bool:
    """Whether so many requests were there once while the other one went on."""
    start = time.monotonic()
    while not other.done():
        if await running(adapter, http) == wanted:
            return not other.done()
        assert time.monotonic() - start < LIMIT_S, f"never {wanted} requests"
        await asyncio.sleep(0.02)
    return False
