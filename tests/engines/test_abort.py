"""An engine's request ends when its client closes the connection: what cancelling through pointsman rests on."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest

from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.http import EngineHttp

pytestmark = pytest.mark.engines

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


async def under_way(
    adapter: EngineAdapter, http: EngineHttp, client: aiohttp.ClientSession, url: str, body: object, requests: int
) -> asyncio.Task[aiohttp.ClientResponse]:
    """A call that the engine has begun with. Where cores are shared one can be over before the engine tells of it."""
    for _ in range(10):
        call = asyncio.create_task(client.post(url, json=body))
        try:
            await until(adapter, http, requests, 12.0)
        except AssertionError:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until(adapter, http, 0, 30.0)
        else:
            return call
    raise AssertionError(f"{requests} requests were never seen")


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, 1),
        ("/v1/completions", {**TEXT, "stream": True}, 1),
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 2, "temperature": 1}, 2),
    ],
    ids=["chat stream", "completion stream", "chat at once", "n=2"],
)
async def test_closing_the_connection_aborts(server, http, path, body, requests):
    """Within a second, but for SGLang without a stream: it looks only every 4 s whether the client is still there."""
    adapter, _ = await detect(http)
    limit_s = 1.0 if adapter.kind != "sglang" or body.get("stream") else 6.0
    await until(adapter, http, 0, 10.0)
    headers = {} if server.key is None else {"Authorization": f"Bearer {server.key}"}

    async with aiohttp.ClientSession(headers=headers) as client:
        call = await under_way(adapter, http, client, server.url + path, body, requests)
        if body.get("stream"):
            await (await call).content.readany()
            (await call).close()
        else:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    await until(adapter, http, 0, limit_s)
