from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from support.embedded_servers import start_embedded
from support.engine_client import Client

StartClient = Callable[..., Awaitable[Client]]
EXACT = {"ignore_eos": True, "temperature": 0}
"""Answers of a real model are then as long as asked for, and the same each time."""


async def _start_sim(stack: AsyncExitStack, **settings: Any) -> SimServer:
    server = SimServer(
        SimSettings(**{"model": "m", "num_blocks": 256, "max_model_len": 512, "block_size": 4, **settings})
    )
    await server.start()
    stack.push_async_callback(server.close)
    return server


@pytest.fixture(params=["sim", "embedded"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which engine stands behind the API."""
    return str(request.param)


@pytest.fixture
async def start(kind: str, session: aiohttp.ClientSession) -> AsyncIterator[StartClient]:
    """`await start(…)`: a client of a new engine with these settings."""
    async with AsyncExitStack() as stack:

        async def client(**settings: Any) -> Client:
            begin = _start_sim if kind == "sim" else start_embedded
            return Client(session, await begin(stack, **settings), EXACT)

        yield client


@pytest.fixture
async def client(start: StartClient) -> Client:
    return await start()


@pytest.fixture
async def embedded(session: aiohttp.ClientSession) -> AsyncIterator[Client]:
    """A client of an embedded engine."""
    async with AsyncExitStack() as stack:
        yield Client(session, await start_embedded(stack), EXACT)
