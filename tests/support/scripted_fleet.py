"""A front end over engines that do what a test says, on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from pointsman.edge.wire.http1_server import HttpServer, IncomingRequest, Responder
from support.fetch import Response, fetch

Answer = Callable[[IncomingRequest, Responder], Awaitable[None]]
JSON = [(b"content-type", b"application/json")]
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]


def chunk(**fields: Any) -> bytes:
    """One event of a chat stream."""
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "model": "m"} | fields).encode() + b"\n\n"


def delta(text: str) -> bytes:
    """One event with a piece of text."""
    return chunk(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


def usage_event(prompt: int = 10, completion: int = 3, cached: int = 4) -> bytes:
    """The event that only holds usage."""
    details = {"cached_tokens": cached}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return chunk(choices=[], usage=usage)


DONE = b"data: [DONE]\n\n"


async def stream_three(incoming: IncomingRequest, responder: Responder) -> None:
    """Three pieces of text, the usage event if it was asked for, the end."""
    responder.start(200, SSE)
    for text in ("one", " zwei", " três"):
        responder.write(delta(text))
        await asyncio.sleep(0)
    if (json.loads(incoming.body).get("stream_options") or {}).get("include_usage"):
        responder.write(usage_event())
    responder.write(DONE)
    responder.finish()


async def hang(incoming: IncomingRequest, responder: Responder) -> None:
    """Accept and never answer."""
    await asyncio.Event().wait()


@dataclass
class Engine:
    """A server that lists its models and otherwise does what `answer` says. Keeps all that it was asked."""

    name: str
    models: tuple[str, ...] = ("m",)
    answer: Answer = stream_three
    requests: list[IncomingRequest] = field(default_factory=list)
    aborted: int = 0
    running: int = 0
    abort_seen: asyncio.Event = field(default_factory=asyncio.Event)
    server: HttpServer | None = None

    async def start(self, port: int = 0) -> None:
        self.server = HttpServer(self._handle)
        await self.server.start("127.0.0.1", port)

    @property
    def port(self) -> int:
        assert self.server is not None
        return self.server.port

    async def close(self) -> None:
        if self.server is not None:
            await self.server.close()
            self.server = None

    async def _handle(self, incoming: IncomingRequest, responder: Responder) -> None:
        if incoming.path == "/v1/models":
            data = [{"id": model, "object": "model"} for model in self.models]
            responder.send(200, JSON, json.dumps({"object": "list", "data": data}).encode())
        elif incoming.method == "GET":
            responder.send(200 if incoming.path == "/health" else 404, JSON, b"{}")
        elif incoming.header(b"x-request-id") is None:  # a probe, not a client's request
            responder.send(404, JSON, b"{}")
        else:
            await self._answer(incoming, responder)

    async def _answer(self, incoming: IncomingRequest, responder: Responder) -> None:
        self.requests.append(incoming)
        self.running += 1
        try:
            await self.answer(incoming, responder)
        except asyncio.CancelledError:
            self.aborted += 1
            self.abort_seen.set()
            raise
        finally:
            self.running -= 1


class Fleet:
    """Engines, a front end before them, and a client."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.engines: list[Engine] = []
        self.pool = UpstreamPool()
        self.frontend: Frontend

    async def engine(self, name: str, **fields: Any) -> Engine:
        engine = Engine(name, **fields)
        await engine.start()
        self._stack.push_async_callback(engine.close)
        self.engines.append(engine)
        return engine

    async def open(self, **settings: Any) -> Frontend:
        sources = tuple(
            WorkerSource(name=e.name, url=f"http://127.0.0.1:{e.port}", kind="openai", models=e.models)
            for e in self.engines
        )
        defaults = FrontendSettings(
            sources=sources, port=0, admin_port=0, heartbeat_s=0.5, seed=1, policy="round_robin"
        )
        self.frontend = Frontend(replace(defaults, **settings))
        await self.frontend.start()
        self._stack.push_async_callback(self.frontend.close)
        self._stack.push_async_callback(self.pool.close)
        await self.until(lambda: self._usable() == len(self.engines))
        return self.frontend

    def _usable(self) -> int:
        return sum(worker.usable for worker in self.frontend.ledger.snapshot().workers)

    async def until(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        """Wait until something holds; it fails loudly when that takes too long."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.005)

    def heard(self) -> int:
        """Events that the front end has so far of the streams that run."""
        return sum(attempt.events for _, attempt in self.frontend.dispatcher.streams())

    async def ask(
        self, path: str, body: Any = None, method: str = "POST", headers: Any = (), admin: bool = False
    ) -> Response:
        url = self.frontend.admin_url if admin else self.frontend.url
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await fetch(self.pool, Origin.parse(url), method, path, headers=headers, body=data, timeout_s=30)

    async def chat(self, headers: Any = (), **fields: Any) -> Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True} | fields
        return await self.ask("/v1/chat/completions", body, headers=headers)

    def at_rest(self) -> None:
        """Assert that nothing is counted any more."""
        snapshot = self.frontend.ledger.snapshot()
        assert (snapshot.running, snapshot.waiting) == (0, 0)
        for worker in snapshot.workers:
            assert (worker.running, worker.prefill_tokens, worker.kv_tokens) == (0, 0, 0)
