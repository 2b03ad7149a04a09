"""The first request of a new fleet: it proves that everything works, and warms it up."""

from __future__ import annotations

import time
from dataclasses import dataclass

import aiohttp

from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.http import connect_reason

_TOKEN_LIMIT_S = 120.0
WORKER_HEADER = "x-pointsman-worker"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What the first request showed."""

    ttft_ms: float
    worker: str


async def first_token(url: str, model: str) -> FirstToken:
    """Stream a short chat through the front end at `url`. Raises EngineError when that fails."""
    timeout = aiohttp.ClientTimeout(total=_TOKEN_LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=False)) as session:
        try:
            return await _chat(session, url, model)
        except aiohttp.ClientConnectorError as error:
            raise EngineError(f"the first request failed: {connect_reason(error)}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"the first request failed: {str(error) or type(error).__name__}") from error


async def _chat(session: aiohttp.ClientSession, url: str, model: str) -> FirstToken:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 4,
        "stream": True,
    }
    began = time.monotonic()
    ttft_ms: float | None = None
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        if answer.status != 200:
            raise EngineError(f"the first request failed with status {answer.status}: {await answer.text()}")
        worker = answer.headers.get(WORKER_HEADER, "?")
        async for line in answer.content:
            if ttft_ms is None and b'"content":"' in line.replace(b'": "', b'":"'):
                ttft_ms = 1000.0 * (time.monotonic() - began)
    if ttft_ms is None:
        raise EngineError(f"the first request to {model} was answered without a token")
    return FirstToken(ttft_ms, worker)
