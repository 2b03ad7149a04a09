from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

import aiohttp
import pytest
import uvloop

from pointsman.edge.engines.sim.server import SimServer
from pointsman.edge.engines.sim.settings import SimSettings
from support import waiting
from support.engine_client import Client, events_of


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
