"""A fake engine on loopback: a table of canned answers, and a record of what was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

HANG = "hang"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    authorization: str | None
    body: object


@dataclass
class FakeEngine:
    """`answers[path]` is JSON to give, text to give, a status, a ready response maker, or HANG."""

    answers: dict[str, object] = field(default_factory=dict)
    key: str | None = None
    asked: list[Asked] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    _runner: web.AppRunner | None = None
    _released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def count(self, path: str) -> int:
        return sum(asked.path == path for asked in self.asked)

    async def start(self, ssl_context: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._released = asyncio.Event()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=ssl_context, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        self.scheme = "http" if ssl_context is None else "https"

    async def stop(self) -> None:
        self._released.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read() or b"null")
        self.asked.append(Asked(request.method, request.path, request.headers.get("Authorization"), body))
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        answer = self.answers.get(request.path, 404)
        if callable(answer):
            answer = answer(body)
        if answer is HANG:
            await self._released.wait()
            answer = 500
        if isinstance(answer, web.StreamResponse):
            return answer
        if isinstance(answer, int):
            return web.Response(status=answer)
        if isinstance(answer, str):
            kind = "text/html" if answer.lstrip().startswith("<") else "text/plain"
            return web.Response(text=answer, content_type=kind)
        return web.json_response(answer)


MakeEngine = Callable[..., Awaitable[FakeEngine]]


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """`await make_engine({path: answer}, key=…, ssl_context=…)`: a started fake engine, stopped after the test."""
    async with AsyncExitStack() as stack:

        async def make(
            answers: dict[str, object], *, key: str | None = None, ssl_context: ssl.SSLContext | None = None
        ) -> FakeEngine:
            engine = FakeEngine(dict(answers), key)
            await engine.start(ssl_context)
            stack.push_async_callback(engine.stop)
            return engine

        yield make


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


@pytest.fixture
def vllm_answers() -> dict[str, object]:
    """A vLLM with one rank, 300 blocks of 32 tokens, that reports cached tokens."""
    label = '{engine="0",model_name="m"}'
    metrics = "\n".join(
        [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{label} 3.0",
            f"vllm:num_requests_waiting{label} 2.0",
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0',
            f"vllm:kv_cache_usage_perc{label} 0.25",
            f"vllm:num_preemptions_total{label} 4.0",
            f"vllm:prefix_cache_queries_total{label} 99999.0",
            'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 70.0',
            'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 20.0',
            'vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 10.0',
            'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="300",num_cpu_blocks="None"} 1.0',
            "process_start_time_seconds 1.7e+09",
        ]
    )
    usage = {"prompt_tokens": 33, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
    return {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096, "parent": None}]},
        "/health": 200,
        "/metrics": metrics + "\n",
        "/openapi.json": {"paths": {"/v1/chat/completions": {}, "/v1/completions": {}, "/tokenize": {}}},
        "/kv_event_sources": {
            "0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "topic": ""}
        },
        "/v1/completions": {"usage": usage},
        "/tokenize": {"count": 2, "tokens": [7, 8]},
    }
