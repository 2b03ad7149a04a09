"""A TCP server whose connections are gone when the test is over: what is left would be blamed on a later one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    """The port at which `serve` runs for each connection, which ends with it, or with the context."""
    tasks: set[asyncio.Task[None]] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            await closed(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(run(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        while tasks:
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close it, after what was written has gone; at once when cancelled."""
    writer.close()
    try:
        with suppress(OSError):
            await writer.wait_closed()
    finally:
        writer.transport.abort()
