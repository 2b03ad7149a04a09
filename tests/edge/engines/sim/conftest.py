from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

import aiohttp
import pytest
import uvloop

from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from support import waiting


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


StartSim = Callable[..., Awaitable[SimServer]]


@pytest.fixture
async def start_sim() -> AsyncIterator[StartSim]:
    """`await start_sim(profile=…, …)`: a listening engine, closed after the test."""
    async with AsyncExitStack() as stack:

        async def start(**overrides: object) -> SimServer:
            values: dict[str, object] = {"model": "m", "num_blocks": 256, "max_model_len": 512, "block_size": 4}
            server = SimServer(SimSettings(**{**values, **overrides}))  # type: ignore[arg-type]
            await server.start()
            stack.push_async_callback(server.close)
            return server

        yield start


@dataclass
class Answer:
    status: int
    text: str

    @property
    def json(self) -> dict[str, object]:
        body: dict[str, object] = json.loads(self.text)
        return body

    @property
    def events(self) -> list[dict[str, object]]:
        """JSON of an SSE body, without the last `[DONE]`."""
        assert self.text.endswith("data: [DONE]\n\n")
        return events_of(self.text)


def events_of(text: str) -> list[dict[str, object]]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


@dataclass
class Client:
    session: aiohttp.ClientSession
    server: SimServer

    async def post(self, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.server.url + path, data=data, headers=headers) as response:
            return Answer(response.status, await response.text())

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.server.url + path) as response:
            return Answer(response.status, await response.text())

    async def chat(self, text: str = "hello", **fields: object) -> Answer:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: object = "hello", **fields: object) -> Answer:
        return await self.post("/v1/completions", {"model": "m", "prompt": prompt, **fields})

    async def faults(self, **fields: object) -> None:
        answer = await self.post("/sim/faults", fields)
        assert answer.status == 200, answer.text


MakeClient = Callable[[SimServer], Client]


@pytest.fixture
def client_of(session: aiohttp.ClientSession) -> MakeClient:
    return lambda server: Client(session, server)


@pytest.fixture
async def client(start_sim: StartSim, client_of: MakeClient) -> Client:
    """A client of a small engine that takes no time."""
    return client_of(await start_sim())


@pytest.fixture
def events_in() -> Callable[[str], list[dict[str, object]]]:
    return events_of


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Turns the event loop until something holds."""
    return waiting.eventually
