"""Acceptor: listens for connections of peers and serves each in a task, a bounded number at a time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine

_log = logging.getLogger("pointsman.transfer")


class Acceptor:
    """`serve` closes the socket that it is given. `most` connections at once, further ones wait."""

    def __init__(self, serve: Callable[[socket.socket], Coroutine[None, None, None]], what: str, most: int) -> None:
        self._serve = serve
        self._what = what
        self._places = asyncio.Semaphore(most)
        self._sock: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address can't be had."""
        loop = asyncio.get_running_loop()
        family, *_, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(128)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        self._sock = sock
        self.port = sock.getsockname()[1]
        self._keep(loop.create_task(self._accept(sock)))

    async def close(self) -> None:
        """Stop listening and cut what is being served. May be called twice."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    @property
    def connections(self) -> int:
        """That are open."""
        return len(self._tasks) - (self._sock is not None)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                peer, _ = await loop.sock_accept(sock)
            except OSError as error:
                self._places.release()
                _log.warning("no %s can be accepted now: %s", self._what, error)
                await asyncio.sleep(1.0)
                continue
            serving = loop.create_task(self._serve(peer))
            serving.add_done_callback(lambda _: self._places.release())
            self._keep(serving)
