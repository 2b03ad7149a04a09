"""An engine that is called by name: when the name stands for another address, new requests go there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from pointsman.edge.engines import http
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.wire.http1_client import Origin, UpstreamPool
from pointsman.edge.wire.http1_server import HttpServer, IncomingRequest, Responder
from support.fetch import fetch

NAME = "engine.test"


class Names:
    """A resolver that knows one name."""

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.asked = 0

    def resolve(self, host: Any, port: Any, *args: Any, **more: Any) -> Any:
        if host == NAME:
            self.asked += 1
            host = self.address
        return _real(host, port, *args, **more)


_real = socket.getaddrinfo


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.resolve)
    return made


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Two servers on one port of two addresses; each answers with its own."""
    servers: list[HttpServer] = []
    number = 0
    for address in ("127.0.0.1", "127.0.0.2"):

        async def answer(request: IncomingRequest, responder: Responder, address: str = address) -> None:
            connection = (request.header(b"connection") or b"keep-alive").decode()
            responder.send(200, (), f"{address} {connection}".encode())

        server = HttpServer(answer)
        try:
            await server.start(address, number)
        except OSError as error:  # macOS has one address only
            pytest.skip(f"{address} can't be listened at: {error}")
        number = server.port
        servers.append(server)
    yield number
    for server in servers:
        await server.close()


async def _ask(pool: UpstreamPool, port: int) -> str:
    return (await fetch(pool, Origin.parse(f"http://{NAME}:{port}"), "GET", "/")).body.decode().split()[0]


async def test_a_kept_connection_grows_only_so_old(names: Names, port: int) -> None:
    pool = UpstreamPool(max_age_s=0.3)
    began_s = asyncio.get_running_loop().time()
    assert await _ask(pool, port) == "127.0.0.1"
    names.address = "127.0.0.2"
    while await _ask(pool, port) == "127.0.0.1":  # as busy as can be: idle time never ends it
        assert asyncio.get_running_loop().time() - began_s < 8
        await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began_s >= 0.3
    assert names.asked == 2
    await pool.close()


async def test_a_young_one_is_kept(names: Names, port: int) -> None:
    pool = UpstreamPool()
    for _ in range(3):
        await _ask(pool, port)
    assert names.asked == 1
    await pool.close()


async def test_where_nobody_is_the_next_try_asks_again(names: Names, port: int) -> None:
    pool = UpstreamPool()
    names.address = "127.0.0.3"
    with pytest.raises(Exception, match="can't connect"):
        await _ask(pool, port)
    names.address = "127.0.0.1"
    assert await _ask(pool, port) == "127.0.0.1"
    await pool.close()


async def test_probes_ask_anew_from_time_to_time(names: Names, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ttl_dns_cache=0)) as session:
        named = EngineHttp(session, f"http://{NAME}:{port}")
        monkeypatch.setattr(http, "RESOLVED_ANEW_S", 1e-9)  # it is always time to
        assert await named.get_text("/") == "127.0.0.1 close"
        names.address = "127.0.0.2"
        assert await named.get_text("/") == "127.0.0.2 close"
        monkeypatch.setattr(http, "_ROUND", 0.0)  # it is never
        names.address = "127.0.0.1"
        assert await named.get_text("/") == "127.0.0.1 keep-alive"
        names.address = "127.0.0.2"
        assert await named.get_text("/") == "127.0.0.1 keep-alive"
        monkeypatch.undo()
        monkeypatch.setattr(http, "RESOLVED_ANEW_S", 1e-9)
        by_address = EngineHttp(session, f"http://127.0.0.1:{port}")
        assert await by_address.get_text("/") == "127.0.0.1 keep-alive"
