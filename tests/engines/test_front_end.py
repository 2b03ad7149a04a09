"""`pointsman serve` before two real engines of different kinds, called with the official OpenAI client."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from pointsman.edge.engines.adapter import EngineAdapter
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.http import EngineHttp

pytestmark = pytest.mark.engines

LIMIT_S = 120.0
MESSAGES = [{"role": "user", "content": "How long is a piece of string?"}]
CONFIGURATION = """\
control-plane: {{listen_port: {port}, admin_port: {admin_port}, heartbeat_interval: 2s, debug_headers: true,
  health: {{outliers: false, canary_limit: 60s}}, timeouts: {{connect: 60s}}}}
execution-group:
  nodes:
    - {{name: vllm, url: "{vllm}", gpu_count: 0, api_key_env: KEY_OF_VLLM}}
    - {{name: sglang, url: "{sglang}", gpu_count: 0}}
"""


@pytest.fixture(scope="module")
def front_end(start_server, free_port, vllm, sglang, log_folder: Path) -> Iterator[object]:
    port, admin_port = free_port(), free_port()
    file = log_folder / "pointsman.yaml"
    file.write_text(CONFIGURATION.format(port=port, admin_port=admin_port, vllm=vllm.url, sglang=sglang.url))
    command = [sys.executable, "-m", "pointsman.app.cli.main", "serve", "--config", str(file)]
    server = start_server("pointsman", command, port, log_folder / "pointsman.log", {"KEY_OF_VLLM": vllm.key})
    server.admin_url = f"http://127.0.0.1:{admin_port}"
    try:
        server.wait_ready("/ready")
        wait_for_workers(server.admin_url)
        yield server
    finally:
        server.stop()


def status_of(admin_url: str) -> dict[str, list[dict[str, object]]]:
    with urllib.request.urlopen(admin_url + "/v1/status", timeout=5) as answer:
        return json.load(answer)


def wait_for_workers(admin_url: str) -> None:
    """The front end is ready with its first worker; these tests need both."""
    deadline = time.monotonic() + LIMIT_S
    while len([worker for worker in status_of(admin_url)["workers"] if worker["state"] == "ready"]) < 2:
        assert time.monotonic() < deadline, json.dumps(status_of(admin_url)["workers"])
        time.sleep(0.1)


@pytest.fixture
async def client(front_end) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=front_end.url + "/v1", api_key="of-the-client", max_retries=0) as client:
        yield client


@pytest.fixture
async def direct(server) -> AsyncIterator[openai.AsyncOpenAI]:
    """The same engine without pointsman."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key=server.key or "none", max_retries=0) as client:
        yield client


async def until_running(
    adapter: EngineAdapter, http: EngineHttp, wanted: int, other: asyncio.Task[None] | None = None
) -> bool:
    """False where the other one has ended before.

    An engine counts a request a little after its first token left, and lets go of it a little after its last.
    """
    async with asyncio.timeout(LIMIT_S):
        while (await adapter.read_load(http))[0].running != wanted:
            if other is not None and other.done():
                return False
            await asyncio.sleep(0.02)
    return other is None or not other.done()


def pinned(server) -> dict[str, str]:
    return {"x-pointsman-worker": f"{server.name.lower()}/0"}


def test_status_tells_what_was_found(front_end):
    deadline = time.monotonic() + LIMIT_S
    while True:
        engines = {engine["name"]: engine for engine in status_of(front_end.admin_url)["engines"]}
        # One probe of a busy engine may be lost; the next one is not.
        if engines["vllm"]["load_unknown"] is None or time.monotonic() >= deadline:
            break
        time.sleep(0.1)

    assert engines["vllm"]["description"].startswith("vLLM 0.")
    assert "300 blocks of 32 tokens" in engines["vllm"]["description"]
    assert engines["sglang"]["description"].startswith("SGLang 0.")
    assert engines["vllm"]["load_unknown"] is None


async def test_both_engines_serve_one_model(client):
    assert [model.id async for model in client.models.list()] == ["tiny"]


async def test_a_stream_has_the_same_text_as_the_engines_own(server, client, direct):
    async def text(who: openai.AsyncOpenAI, headers: dict[str, str]) -> tuple[str, int]:
        stream = await who.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=20,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers=headers,
        )
        chunks = [chunk async for chunk in stream]
        return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), len(chunks)

    # How an engine rounds depends on what it has cached and what is in its batch: until it says the same twice.
    for _ in range(5):
        before, _ = await text(direct, {})
        through, chunks = await text(client, pinned(server))
        after, _ = await text(direct, {})
        if before == after:
            break

    assert through == after == before
    assert chunks > 2  # engines put tokens together as it suits them, so the number differs from call to call


async def test_usage_reaches_who_asked_for_it(server, client):
    stream = await client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=pinned(server),
    )

    usages = [chunk.usage async for chunk in stream if chunk.usage]

    assert usages[-1].completion_tokens <= 5
    assert usages[-1].prompt_tokens > 0


async def test_the_worker_that_answered_is_named(server, client):
    answer = await client.completions.with_raw_response.create(
        model="tiny", prompt=[10, 11, 12], max_tokens=2, extra_headers=pinned(server)
    )

    assert pinned(server)["x-pointsman-worker"] in answer.headers.values()
    assert answer.parse().usage.prompt_tokens == 3


async def test_the_engines_own_error_reaches_the_client(server, client):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=3, temperature=-5, extra_headers=pinned(server)
        )

    assert "temperature" in str(caught.value)


async def test_leaving_a_stream_aborts_at_the_engine(server, client, direct, http):
    """While another one goes on that began before it and is shorter, the one that was left did not end by itself."""
    adapter, _ = await detect(http)

    async def stream(who: openai.AsyncOpenAI, tokens: int, headers: dict[str, str]):
        return await who.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=tokens,
            stream=True,
            extra_body={"ignore_eos": True},
            extra_headers=headers,
        )

    async def read(other) -> None:
        async with other:
            async for _ in other:
                pass

    async def is_gone_first() -> bool:
        await until_running(adapter, http, 0)
        other = asyncio.create_task(read(await stream(direct, 3000, {})))
        try:
            left = await stream(client, 3500, pinned(server))
            await anext(aiter(left))
            two = await until_running(adapter, http, 2, other)
            await left.close()
            # Were it the other one that has ended, that would be heard while the engine is asked some times more.
            return two and all([await until_running(adapter, http, 1, other) for _ in range(10)])
        finally:
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)

    # Where cores are shared a stream can be over before the engine tells of it, or the other one before it is left.
    for _ in range(8):
        if await is_gone_first():
            return
    pytest.fail("it was never gone before a stream that began earlier and is shorter")
