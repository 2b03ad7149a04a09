"""The HTTP/1.1 server of the request path: listening, counting connections, closing."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from email.utils import formatdate
from ssl import SSLContext

from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_connection import Handler, OnHead, ServerConnection
from pointsman.edge.wire.http1_limits import ServerLimits
from pointsman.edge.wire.http1_request import IncomingRequest
from pointsman.edge.wire.http1_responder import Responder

__all__ = ["Handler", "Headers", "HttpServer", "IncomingRequest", "Responder", "ServerLimits"]

logger = logging.getLogger("pointsman.wire")

_BACKLOG = 4096
_PLAIN_BACKLOG = 128
_MAX_TICK_S = 1.0
_TURNED_AWAY_AT_ONCE = 128
"""Connections beyond the limit that get time to read their answer; further ones are closed right after it."""


class HttpServer:
    """Calls `handler(request, responder)` as one task for each request.

    If the client leaves before `responder.finish()`, the task is cancelled. `on_reject(status, message)` makes the JSON
    body of answers to what is no proper request. `on_head` may refuse a request before its body, a long one, is read.
    """

    def __init__(
        self,
        handler: Handler,
        limits: ServerLimits | None = None,
        on_reject: Callable[[int, str], bytes] | None = None,
        on_head: OnHead | None = None,
    ):
        self.handler = handler
        self.on_head = on_head
        self.limits = limits or ServerLimits()
        self.closing = False
        """No request is taken any more on a connection after the one that it is at."""
        self.linger_s = 0.0
        """While `closing`: what connections without a request get, since one may be on its way."""
        self.bodies_bytes = 0
        """Bodies of requests that are being read or answered."""
        self.turned_away: Counter[str] = Counter()
        """Connections and requests that got a 503 from here, by what there was too much of."""
        self.port = 0
        """Where it listens, once started."""
        self._on_reject = on_reject or error_body
        self._connections: set[ServerConnection] = set()
        self._turned_away: set[ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[asyncio.Server] = []
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
        socks: Sequence[socket.socket] = (),
    ) -> None:
        """Listen on `host:port` (0: any free one), or on `socks`, already bound. Raises OSError when that can't be."""
        loop = asyncio.get_running_loop()

        def accept() -> ServerConnection:
            return ServerConnection(self, loop)

        # asyncio's own loop also takes the backlog as the number of accepts in one go, and goes on after EMFILE
        backlog = _PLAIN_BACKLOG if type(loop).__module__.startswith("asyncio") else _BACKLOG
        handshake_s = self.limits.head_timeout_s if ssl is not None else None
        for sock in socks:
            self._listening.append(
                await loop.create_server(accept, sock=sock, ssl=ssl, backlog=backlog, ssl_handshake_timeout=handshake_s)
            )
        if not socks:
            self._listening.append(
                await loop.create_server(
                    accept,
                    host,
                    port,
                    ssl=ssl,
                    backlog=backlog,
                    reuse_port=reuse_port or None,
                    ssl_handshake_timeout=handshake_s,
                )
            )
        self.port = self._listening[0].sockets[0].getsockname()[1]

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    @property
    def busy(self) -> int:
        """Requests that are being answered."""
        return len(self._tasks)

    @property
    def unread(self) -> int:
        """Connections whose clients have not read all of an answer that is complete."""
        return sum(connection.unread for connection in self._connections)

    def stop_listening(self) -> None:
        """Accept no more connections here. What waits in the queue of a socket that another process has too is its."""
        for server in self._listening:
            server.close()

    def begin_closing(self, linger_s: float = 0.0) -> None:
        """Answers say `connection: close` from now on; connections that are idle end after `linger_s`.

        Requests are still handed to the handler.
        """
        self.closing, self.linger_s = True, linger_s
        for connection in tuple(self._connections):
            connection.close_when_idle()

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, give requests `grace_s` seconds to end, then cancel their handlers and cut the rest."""
        self.stop_listening()
        self.begin_closing()
        if grace_s > 0:
            await self.wait_closed(grace_s)
        await self._cancel_handlers()
        await self.wait_closed(0.05)
        for connection in (*self._connections, *self._turned_away):
            connection.cut()
        await self.wait_closed(5.0)
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for server in self._listening:
            await server.wait_closed()

    async def _cancel_handlers(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_closed(self, timeout_s: float) -> None:
        """Until no connection is open, at most so long."""
        self._all_closed.clear()
        if self._connections or self._turned_away:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._all_closed.wait()
            except TimeoutError:
                return

    # ---- what connections ask for

    def opened(self, connection: ServerConnection, descriptor: int) -> str | None:
        """Count it in, or say why it can't be served."""
        if self._tick is None:
            self._schedule_tick()
        limits = self.limits
        most = limits.max_connections
        if most is not None and len(self._connections) >= most:
            refusal = "too many connections; try again later"
            self.turned_away["connections"] += 1
        elif limits.max_descriptor is not None and descriptor > limits.max_descriptor:
            refusal = "the front end has hardly a file descriptor left; try again later"
            self.turned_away["descriptors"] += 1
        else:
            self._connections.add(connection)
            return None
        self._turned_away.add(connection)
        return refusal

    def may_linger(self) -> bool:
        """Whether one that is turned away gets time to read its answer."""
        return len(self._turned_away) <= _TURNED_AWAY_AT_ONCE

    def take_body_bytes(self, size: int) -> bool:
        """Count so many bytes of a body in (less than 0: out); False: there are too many."""
        most = self.limits.max_bodies_bytes
        if size > 0 and most is not None and self.bodies_bytes + size > most:
            self.turned_away["bodies"] += 1
            return False
        self.bodies_bytes += size
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
