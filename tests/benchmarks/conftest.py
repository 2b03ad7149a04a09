"""The harness is no installed package: its folder goes to the end of the import path."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from harness.bare_relay import Client, Upstream
from harness.mock_engine import MockConnection, Pacer

StartServer = Callable[[Callable[[], asyncio.Protocol]], Awaitable[int]]


class _Tracked(asyncio.Protocol):
    """A server's protocol whose transport is remembered, so that the test leaves no socket open."""

    def __init__(self, inner: asyncio.Protocol, transports: list[asyncio.Transport]) -> None:
        self._inner = inner
        self._transports = transports
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(cast(asyncio.Transport, transport))
        self._inner.connection_made(transport)


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    """Serves a protocol on a free port of 127.0.0.1 and returns the port."""
    servers: list[asyncio.Server] = []
    transports: list[asyncio.Transport] = []

    async def start(protocol: Callable[[], asyncio.Protocol]) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Tracked(protocol(), transports), "127.0.0.1", 0)
        servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    yield start
    for server in servers:
        server.close()
    await _abort(transports)


@pytest.fixture
async def pacer() -> Pacer:
    return Pacer(asyncio.get_running_loop())


@pytest.fixture
async def engine(start_server: StartServer, pacer: Pacer) -> int:
    """Port of a mock engine as fast as it can."""
    return await start_server(lambda: MockConnection(pacer))


@pytest.fixture
async def relay(start_server: StartServer, engine: int) -> AsyncIterator[int]:
    """Port of the bare relay before that engine."""
    pool: list[Upstream] = []
    turns = itertools.cycle([(engine, pool)])
    yield await start_server(lambda: Client(turns))
    await _abort([upstream.transport for upstream in pool])


async def _abort(transports: list[asyncio.Transport]) -> None:
    for transport in transports:
        transport.abort()
    for _ in range(2):  # their last callbacks
        await asyncio.sleep(0)
