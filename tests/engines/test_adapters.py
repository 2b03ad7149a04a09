from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble

pytestmark = pytest.mark.engines

MESSAGES = [{"role": "user", "content": "How long is a piece of string?"}]


def headers_of(server) -> dict[str, str]:
    return {} if server.key is None else {"Authorization": f"Bearer {server.key}"}


async def test_vllm_is_what_its_flags_made_it(vllm, session):
    http = EngineHttp(session, vllm.url, api_key=vllm.key)

    adapter, facts = await detect(http)
    facts = await adapter.probe(http, facts)

    assert (facts.kind, facts.models, facts.ranks) == ("vllm", ("tiny",), (0,))
    assert (facts.block_size_tokens, facts.kv_capacity_tokens, facts.max_context_tokens) == (32, 9600, 4096)
    assert facts.kv is None
    can = facts.capabilities
    assert (can.chat, can.completions, can.responses, can.tokenize, can.load) == (True, True, True, True, True)
    assert (can.cached_tokens, can.embeddings) == (True, False)
    (events,) = can.kv_events
    assert events.endpoint.startswith("tcp://127.0.0.1:")
    assert facts.hints == ()
    assert facts.describe().startswith(f"vLLM {facts.version}, model tiny, 300 blocks of 32 tokens, context 4096")


async def test_sglang_is_what_its_flags_made_it(sglang, session):
    http = EngineHttp(session, sglang.url)

    adapter, facts = await detect(http)
    facts = await adapter.probe(http, facts)

    assert (facts.kind, facts.models, facts.ranks) == ("sglang", ("tiny",), (0,))
    assert (facts.block_size_tokens, facts.kv_capacity_tokens, facts.max_context_tokens) == (16, 8192, 4096)
    assert (facts.kv, facts.role) == (None, None)
    can = facts.capabilities
    assert (can.chat, can.completions, can.tokenize, can.load) == (True, True, True, True)
    assert (can.cached_tokens, can.kv_events) == (False, ())
    text = facts.describe()
    assert "--enable-cache-report" in text
    assert "--kv-events-config" in text


async def test_vllm_without_its_key_says_what_to_give(vllm, session):
    with pytest.raises(EngineCallError, match="api_key") as caught:
        await detect(EngineHttp(session, vllm.url))

    assert caught.value.trouble is Trouble.KEY_REFUSED


async def test_an_idle_engine_reads_as_idle(http):
    adapter, _ = await detect(http)

    async with asyncio.timeout(60.0):  # it lets go of the last test's request a little after the answer
        while (reading := (await adapter.read_load(http))[0]).running or reading.waiting:
            await asyncio.sleep(0.02)

    assert reading.rank == 0
    assert reading.kv_use is not None
    assert reading.kv_capacity_tokens in (9600, 8192)


async def test_counters_only_grow_while_it_lives(server, http, session):
    adapter, _ = await detect(http)
    (before,) = await adapter.read_load(http)
    body = {"model": "tiny", "prompt": list(range(10, 90)), "max_tokens": 2}
    async with session.post(server.url + "/v1/completions", json=body, headers=headers_of(server)) as answer:
        assert answer.status == 200

    (after,) = await adapter.read_load(http)

    assert before.computed_tokens_total is not None
    assert after.computed_tokens_total >= before.computed_tokens_total
    assert not after.shows_restart_since(before)


@pytest.mark.parametrize("prompt", ["def f(x):\n    return x  # ünïcode", MESSAGES], ids=["text", "messages"])
async def test_token_ids_are_the_engines_own(server, http, session, prompt):
    adapter, _ = await detect(http)

    ids = await adapter.tokenize(http, "tiny", prompt)

    text = isinstance(prompt, str)
    path = "/v1/completions" if text else "/v1/chat/completions"
    body = {"model": "tiny", "max_tokens": 1, "temperature": 0, "prompt" if text else "messages": prompt}
    async with session.post(server.url + path, json=body, headers=headers_of(server)) as answer:
        usage = (await answer.json())["usage"]
    assert ids
    assert len(ids) == usage["prompt_tokens"]


async def test_vllm_computes_with_exactly_these_token_ids(vllm, session):
    http = EngineHttp(session, vllm.url, api_key=vllm.key)
    adapter, _ = await detect(http)
    body = {"model": "tiny", "max_tokens": 1, "messages": MESSAGES, "return_token_ids": True}

    async with session.post(vllm.url + "/v1/chat/completions", json=body, headers=headers_of(vllm)) as answer:
        seen = (await answer.json())["prompt_token_ids"]

    assert await adapter.tokenize(http, "tiny", MESSAGES) == seen


async def test_stream_usage_is_understood(server, http, session):
    _, facts = await detect(http)
    assert facts.capabilities.stream_usage
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3, "stream": True}
    body["stream_options"] = {"include_usage": True}

    async with session.post(server.url + "/v1/chat/completions", json=body, headers=headers_of(server)) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: {")]

    last = json.loads(lines[-1].removeprefix(b"data: "))
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] > 0


async def test_token_ids_are_taken_as_prompt(server, http, session: aiohttp.ClientSession):
    _, facts = await detect(http)
    assert facts.capabilities.token_id_prompts
    body = {"model": "tiny", "prompt": [10, 11, 12], "max_tokens": 1}

    async with session.post(server.url + "/v1/completions", json=body, headers=headers_of(server)) as answer:
        assert (await answer.json())["usage"]["prompt_tokens"] == 3


async def test_the_rank_header_is_understood(server, http, session):
    _, facts = await detect(http)
    headers = {**headers_of(server), facts.capabilities.rank_header: "0"}
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1}

    async with session.post(server.url + "/v1/completions", json=body, headers=headers) as answer:
        assert answer.status == 200
