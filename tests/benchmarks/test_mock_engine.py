from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from harness.mock_answers import MODEL
from harness.mock_engine import Pacer


async def _events(port: int, path: str, **fields: Any) -> list[Any]:
    body = {"model": MODEL, "stream": True, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", json=body) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in (await answer.text()).split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.mark.parametrize("itl_ms", [0, 2])
async def test_a_chat_has_exactly_the_tokens_asked_for(engine: int, pacer: Pacer, itl_ms: int) -> None:
    pacer.itl_ms = itl_ms
    events = await _events(engine, "/v1/chat/completions", max_tokens=7)
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", *[" token"] * 7, None]
    assert events[-1]["choices"][0]["finish_reason"] == "length"


async def test_usage_comes_only_when_asked_for(engine: int) -> None:
    events = await _events(engine, "/v1/completions", max_tokens=3, stream_options={"include_usage": True})
    assert [event["choices"][0]["text"] for event in events[:-1]] == [" token"] * 3 + [""]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3
    assert all("usage" not in event for event in await _events(engine, "/v1/completions", max_tokens=3))


async def test_whole_answers_probes_and_pace(engine: int, pacer: Pacer) -> None:
    url = f"http://127.0.0.1:{engine}"
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/v1/chat/completions", json={"model": MODEL, "max_tokens": 4}) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == " token" * 4
        async with session.get("/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == MODEL
        async with session.get("/nothing") as answer:
            assert answer.status == 404
        async with session.post("/mock/pace", json={"itl_ms": 9}) as answer:
            assert answer.status == 200
    assert pacer.itl_ms == 9


async def test_the_bare_relay_passes_on_what_the_engine_says(engine: int, relay: int) -> None:
    for _ in range(2):  # the second one over the connection of the first
        direct = await _events(engine, "/v1/chat/completions", max_tokens=5)
        assert await _events(relay, "/v1/chat/completions", max_tokens=5) == direct
