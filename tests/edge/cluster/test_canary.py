"""Canaries against an engine in this process: what each answer means, and that none takes longer than it may."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from pointsman.core.ledger.events import CanaryResult
from pointsman.edge.cluster.canary import CHAT, COMPLETIONS, CanaryTarget, send_canary
from pointsman.edge.engines.facts import Capabilities, EngineFacts
from pointsman.edge.engines.http import EngineHttp
from support.shut_port import shut_port

TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
Script = Callable[[web.StreamResponse], Awaitable[None]]


@dataclass
class Engine:
    """Answers by its script; None: with a status."""

    status: int = 200
    pieces: list[bytes] = field(default_factory=lambda: [TOKEN, TOKEN, DONE])
    hangs_after: int | None = None
    cuts_after: int | None = None
    content_type: str = "text/event-stream"
    paths: tuple[str, ...] = (COMPLETIONS, CHAT)
    asked: list[tuple[str, dict[str, object], dict[str, str]]] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, json.loads(await request.read()), dict(request.headers)))
        if request.path not in self.paths:
            raise web.HTTPNotFound
        if self.status != 200:
            return web.Response(status=self.status, text='{"error": "cannot do that"}')
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        for number, piece in enumerate(self.pieces):
            if number == self.hangs_after:
                await asyncio.sleep(60)
            if number == self.cuts_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(piece)
        return response


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    app = web.Application()
    app.router.add_post("/{path:.*}", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def facts(**changes: object) -> EngineFacts:
    values: dict[str, object] = {"kind": "vllm", "version": "0.32.0", "models": ("m", "sql"), "lora": ("sql",)}
    return EngineFacts(**(values | changes))  # type: ignore[arg-type]


async def ask(session, engine: Engine, limit_s: float = 8.0, **changes: object):
    known = facts(**changes)
    target = CanaryTarget.of(EngineHttp(session, engine.url, api_key="secret"), known, known.models, 0)
    assert target is not None
    loop = asyncio.get_running_loop()
    return await send_canary(target, limit_s, lambda: 1000.0 * loop.time())


async def test_it_goes_to_the_end_of_a_stream_of_two_tokens(session, engine) -> None:
    outcome = await ask(session, engine)
    assert (outcome.result, outcome.total_ms is not None) == (CanaryResult.PASSED, True)
    ((path, body, headers),) = engine.asked
    assert path == COMPLETIONS
    assert headers["Authorization"] == "Bearer secret"
    assert body == {
        "model": "m",  # not the adapter
        "prompt": "1 2 3",
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
        "cache_salt": "pointsman-canary",
    }


async def test_token_ids_where_it_takes_them_and_no_salt_where_it_may_not_know_it(session, engine) -> None:
    capabilities = Capabilities(token_id_prompts=True, rank_header="X-data-parallel-rank")
    await ask(session, engine, kind="sglang", capabilities=capabilities, ranks=(0, 1))
    ((_, body, headers),) = engine.asked
    assert body["prompt"] == [1, 1, 1, 1]
    assert "cache_salt" not in body
    assert headers["X-data-parallel-rank"] == "0"


async def test_chat_where_there_are_no_completions(session, engine) -> None:
    engine.paths = (CHAT,)
    target = CanaryTarget(EngineHttp(session, engine.url), "openai", "m")
    for _ in range(2):
        assert (await send_canary(target, 5.0, lambda: 0.0)).result is CanaryResult.PASSED
    assert [path for path, *_ in engine.asked] == [COMPLETIONS, CHAT, CHAT]
    assert engine.asked[-1][1]["messages"] == [{"role": "user", "content": "1 2 3"}]


async def test_neither_is_a_refusal(session, engine) -> None:
    engine.paths = ()
    assert (await ask(session, engine)).result is CanaryResult.REFUSED


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (400, CanaryResult.REFUSED),
        (401, CanaryResult.REFUSED),
        (422, CanaryResult.REFUSED),
        (429, CanaryResult.BUSY),
        (503, CanaryResult.BUSY),
        (504, CanaryResult.LATE),
        (500, CanaryResult.FAILED),
        (307, CanaryResult.FAILED),
    ],
)
async def test_what_a_status_means(session, engine, status: int, result: CanaryResult) -> None:
    engine.status = status
    outcome = await ask(session, engine)
    assert outcome.result is result
    assert str(status) in outcome.reason
    assert "secret" not in outcome.reason


@pytest.mark.parametrize(
    ("changes", "result", "words"),
    [
        ({"hangs_after": 0}, CanaryResult.LATE, "not answered to its end within {:g} s"),
        ({"hangs_after": 1}, CanaryResult.LATE, "after 1 events"),
        ({"cuts_after": 1}, CanaryResult.LOST, "ended in the middle of"),
        ({"pieces": [TOKEN]}, CanaryResult.FAILED, "without [DONE]"),
        ({"pieces": [DONE]}, CanaryResult.FAILED, "no token"),
        ({"pieces": [b'data: {"error": {"message": "boom"}}\n\n', DONE]}, CanaryResult.FAILED, "held an error"),
        ({"content_type": "application/json"}, CanaryResult.REFUSED, "not a stream"),
        ({"pieces": [b"x" * 2**20] * 5}, CanaryResult.FAILED, "more than"),
    ],
)
async def test_what_a_stream_means(session, engine, changes: dict[str, object], result, words: str) -> None:
    for name, value in changes.items():
        setattr(engine, name, value)
    for limit_s in (0.3, 1.0, 4.0) if "hangs_after" in changes else (8.0,):
        outcome = await ask(session, engine, limit_s)
        if words.format(limit_s) in outcome.reason:  # else its events came too late as well
            break
    assert outcome.result is result
    assert words.format(limit_s) in outcome.reason


async def test_nobody_listens(session) -> None:
    with shut_port() as port:
        outcome = await ask(session, Engine(url=f"http://127.0.0.1:{port}"))
    assert outcome.result is CanaryResult.UNREACHABLE
    assert "connection refused" in outcome.reason


def test_an_engine_that_only_embeds_has_no_target() -> None:
    capabilities = Capabilities(completions=False, chat=False, embeddings=True)
    known = facts(capabilities=capabilities)
    assert CanaryTarget.of(None, known, known.models, 0) is None  # type: ignore[arg-type]
    assert CanaryTarget.of(None, facts(models=()), (), 0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [501, 405])
async def test_an_engine_that_generates_nothing_refuses_them(session, engine, status: int) -> None:
    engine.status = status
    outcome = await ask(session, engine)
    assert outcome.result is CanaryResult.REFUSED
    assert [path for path, _, _ in engine.asked] == [COMPLETIONS, CHAT]
