"""The HTTP/1.1 server of the request path: listening, counting connections, closing."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from ssl import SSLContext

from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_connection import Handler, ServerConnection
from pointsman.edge.wire.http1_limits import ServerLimits
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

__all__ = ["Handler", "Headers", "HttpServer", "IncomingRequest", "Responder", "ServerLimits"]

logger = logging.getLogger("pointsman.wire")

_BACKLOG = 4096
_PLAIN_BACKLOG = 128
_MAX_TICK_S = 1.0
_TURNED_AWAY_AT_ONCE = 128
"""Connections beyond the limit that get an answer; further ones are just closed."""


class HttpServer:
    """Calls `handler(request, responder)` as one task for each request.

    If the client leaves before `responder.finish()`, the task is cancelled. `on_reject(status, message)` makes the JSON
    body of answers to what is no proper request.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        on_reject: Callable[[int, str], bytes] | None = None,
    ):
        self.handler = handler
        self.limits = limits or ServerLimits()
        self.closing = False
        self.port = 0
        """Where it listens, once started."""
        self._on_reject = on_reject or error_body
        self._connections: set[ServerConnection] = set()
        self._turned_away: set[ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._all_closed: asyncio.Event = asyncio.Event()
        self._tick: asyncio.TimerHandle | None = None
        self._tick_s = self._tick_interval_s()
        self._date_s = -1
        self._date_line = b""

    def _tick_interval_s(self) -> float:
        limits = self.limits
        shortest = min(
            limits.head_timeout_s, limits.body_timeout_s, limits.keep_alive_timeout_s, limits.write_timeout_s
        )
        return max(0.02, min(_MAX_TICK_S, shortest / 4))

    async def start(
        self,
        host: str | None,
        port: int,
        *,
        ssl: SSLContext | None = None,
        reuse_port: bool = False,
        sock: socket.socket | None = None,
    ) -> None:
        """Listen on `host:port` (0: any free one), or on `sock`, already bound. Raises OSError when that can't be."""
        loop = asyncio.get_running_loop()

        def accept() -> ServerConnection:
            return ServerConnection(self, loop)

        # asyncio's own loop also takes the backlog as the number of accepts in one go, and goes on after EMFILE
        backlog = _PLAIN_BACKLOG if type(loop).__module__.startswith("asyncio") else _BACKLOG
        handshake_s = self.limits.head_timeout_s if ssl is not None else None
        if sock is not None:
            self._server = await loop.create_server(
                accept, sock=sock, ssl=ssl, backlog=backlog, ssl_handshake_timeout=handshake_s
            )
        else:
            self._server = await loop.create_server(
                accept,
                host,
                port,
                ssl=ssl,
                backlog=backlog,
                reuse_port=reuse_port or None,
                ssl_handshake_timeout=handshake_s,
            )
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, give requests `grace_s` seconds to end, then cancel their handlers and cut the rest."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close_when_idle()
        if grace_s > 0:
            await self._wait_closed(grace_s)
        await self._cancel_handlers()
        await self._wait_closed(0.05)
        for connection in (*self._connections, *self._turned_away):
            connection.cut()
        await self._wait_closed(5.0)
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        if self._server is not None:
            await self._server.wait_closed()

    async def _cancel_handlers(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_closed(self, timeout_s: float) -> None:
        self._all_closed.clear()
        if self._connections or self._turned_away:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
            except TimeoutError:
                return

    # ---- what connections ask for

    def opened(self, connection: ServerConnection) -> bool:
        """Count it in; False: there are too many."""
        if self._tick is None:
            self._schedule_tick()
        most = self.limits.max_connections
        if most is not None and len(self._connections) >= most:
            self._turned_away.add(connection)
            if len(self._turned_away) > _TURNED_AWAY_AT_ONCE:
                connection.cut()
            return False
        self._connections.add(connection)
        return True

    def closed(self, connection: ServerConnection) -> None:
        """Count it out."""
        self._connections.discard(connection)
        self._turned_away.discard(connection)
        if not self._connections and not self._turned_away:
            self._all_closed.set()

    def track(self, task: asyncio.Task[None]) -> None:
        """Keep a handler's task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def rejection(self, status: int, message: str) -> bytes:
        """JSON body of an answer to what is not a proper request."""
        return self._on_reject(status, message)

    def date_line(self) -> bytes:
        """The `date` field with CRLF, made once a second."""
        now_s = int(time.time())
        if now_s != self._date_s:
            self._date_s = now_s
            self._date_line = b"date: %b\r\n" % formatdate(now_s, usegmt=True).encode("ascii")
        return self._date_line

    # ---- time limits: one timer a server, not several a connection

    def _schedule_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(self._tick_s, self._check_deadlines)

    def _check_deadlines(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connection in (*self._connections, *self._turned_away):
            try:
                connection.check_deadlines(now_s)
            except Exception:
                logger.exception("checking the time limits of a connection failed")
        self._tick = None
        if self._connections or self._turned_away:
            self._schedule_tick()
