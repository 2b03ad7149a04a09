"""Streams of several kinds of engine are timed, and refusals explained."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.timed_completion import CompletionClient

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Start = Callable[[dict[str, Handler]], Awaitable[str]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        async def start(routes: dict[str, Handler]) -> str:
            app = web.Application()
            for path, handler in routes.items():
                app.router.add_post(path, handler)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield start


def stream(*events: object, done: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handler


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
TOKEN = {"choices": [{"index": 0, "text": " a"}]}


async def test_a_completion_is_timed(start: Start, session: aiohttp.ClientSession) -> None:
    url = await start({"/v1/completions": stream(TOKEN, TOKEN, USAGE)})
    firsts: list[int] = []
    answer = await CompletionClient(session, url, "m").ask("hello", 2, lambda: firsts.append(1))
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (7, 2, None)
    assert answer.sent_s <= answer.first_s <= answer.last_s
    assert firsts == [1]


async def test_an_engine_that_only_chats_is_asked_so(start: Start, session: aiohttp.ClientSession) -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    token = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    url = await start({"/v1/chat/completions": stream(role, token, token, USAGE)})
    client = CompletionClient(session, url, "m")
    assert (await client.ask("hello", 2)).output_tokens == 2
    assert (await client.ask("hello", 2)).prompt_tokens == 7


async def test_an_engine_that_refuses_fields_is_asked_without(start: Start, session: aiohttp.ClientSession) -> None:
    seen: list[dict[str, object]] = []

    async def picky(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen.append(body)
        if "ignore_eos" in body:
            return web.json_response({"error": "unknown field"}, status=400)
        return await stream(TOKEN, USAGE)(request)

    url = await start({"/v1/completions": picky})
    await CompletionClient(session, url, "m", api_key="k").ask("hello", 2)
    assert [("ignore_eos" in body) for body in seen] == [True, False]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (stream(TOKEN, TOKEN), "did not say how many tokens"),
        (stream({"error": {"message": "out of memory"}}), "sent an error instead of an answer"),
    ],
)
async def test_answers_that_say_nothing_are_errors(
    start: Start, session: aiohttp.ClientSession, handler: Handler, message: str
) -> None:
    url = await start({"/v1/completions": handler})
    with pytest.raises(EngineError, match=message):
        await CompletionClient(session, url, "m").ask("hello", 2)


async def test_refusals_are_told(start: Start, session: aiohttp.ClientSession) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text="no key")

    url = await start({"/v1/completions": refuse})
    with pytest.raises(EngineError, match="answered 401: no key"):
        await CompletionClient(session, url, "m").ask("hello", 2)


async def test_nobody_there(session: aiohttp.ClientSession) -> None:
    with pytest.raises(EngineError, match=r"cannot connect to http://127\.0\.0\.1:1: "):
        await CompletionClient(session, "http://127.0.0.1:1", "m").ask("hello", 2)
