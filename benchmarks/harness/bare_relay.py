"""The floor: a bare streaming relay in about sixty lines. It checks nothing, accounts nothing and decides by turns.

`python -m harness.bare_relay --port 9000 --engines 9001,9002`. What a front end costs beyond this is what it does.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from typing import cast

import httptools
import uvloop


class Upstream(asyncio.Protocol):
    """One kept-alive connection to an engine; passes bytes to the client that holds it."""

    def __init__(self, pool: list[Upstream]) -> None:
        self._pool = pool
        self.client: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.client and not self.client.is_closing():
            self.client.write(data)
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.client = None
        self._pool.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._pool:
            self._pool.remove(self)
        if self.client:
            self.client.close()


class Client(asyncio.Protocol):
    """One client connection: finds the end of each request and sends it on as it came."""

    def __init__(self, turns: itertools.cycle[tuple[int, list[Upstream]]]) -> None:
        self._turns = turns
        self._raw = b""
        self._upstream: Upstream | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._upstream and self._upstream.client is self._transport:
            self._upstream.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._raw += data
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        request, self._raw = self._raw, b""
        port, pool = next(self._turns)
        if pool:
            self._send(pool.pop(), request)
        else:
            self._connecting = asyncio.ensure_future(self._connect(port, pool, request))

    async def _connect(self, port: int, pool: list[Upstream], request: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, upstream = await loop.create_connection(lambda: Upstream(pool), "127.0.0.1", port)
        self._send(upstream, request)

    def _send(self, upstream: Upstream, request: bytes) -> None:
        self._upstream = upstream
        upstream.client = self._transport
        upstream.transport.write(request)


async def serve(port: int, engines: list[int]) -> None:
    turns: itertools.cycle[tuple[int, list[Upstream]]] = itertools.cycle([(engine, []) for engine in engines])
    server = await asyncio.get_running_loop().create_server(lambda: Client(turns), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engines", required=True, help="comma-separated ports")
    options = parser.parse_args()
    uvloop.run(serve(options.port, [int(engine) for engine in options.engines.split(",")]))


if __name__ == "__main__":
    main()
