"""Framing: messages and bytes over one TCP connection, without a copy of what is large.

A message is `PKV1`, its length (u32, little-endian), and JSON. What follows it raw is up to the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any, TypeVar

import msgspec

MAGIC = b"PKV1"
MOST_MESSAGE_BYTES = 8 << 20
"""A request for 256 k tokens in blocks of 16 has some 200 kB."""
_HEAD = struct.Struct("<4sI")
_BUFFER_BYTES = 64 << 10
_TURN_BYTES = 1 << 20
"""After so many bytes others on the event loop have their turn."""
_MOST_PARTS = 64

M = TypeVar("M")


class FramingError(ValueError):
    """What came is no message of ours."""


class Wire:
    """One connection: a connected, non-blocking TCP socket, of which this takes possession."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._turn_bytes = 0
        self._moved: Callable[[], None] | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> Wire:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        error: OSError | None = None
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                return cls(sock)
            except OSError as failed:
                sock.close()
                error = failed
            except BaseException:
                sock.close()
                raise
        raise error or OSError(f"{host} has no address")

    @property
    def local_address(self) -> str:
        """The address of its end here."""
        return str(self._sock.getsockname()[0])

    def close(self) -> None:
        """At once, without a farewell."""
        self._sock.close()

    @contextlib.asynccontextmanager
    async def moving(self, idle_s: float, also: Callable[[], None] | None = None) -> AsyncIterator[Callable[[], None]]:
        """A time limit that begins anew with whatever is sent or received, and when what this yields is called.

        However large a block and slow a link is, it is over only when nothing moves. `also` is called as often.
        Raises TimeoutError.
        """
        async with asyncio.timeout(idle_s) as limit:

            def moved() -> None:
                now_s, when_s = self._loop.time(), limit.when()
                # Not each time, since that costs more than small blocks do.
                if when_s is not None and when_s - now_s < idle_s * 0.9:
                    limit.reschedule(now_s + idle_s)
                if also is not None:
                    also()

            self._moved = moved
            try:
                yield moved
            finally:
                self._moved = None

    async def send(self, *parts: bytes | memoryview) -> None:
        """All of the parts, gathered by the system. Raises OSError."""
        left = deque(memoryview(part).cast("B") for part in parts if len(part))
        while left:
            try:
                sent = self._sock.sendmsg(list(islice(left, _MOST_PARTS)))
            except (BlockingIOError, InterruptedError):
                await self._writable()
                continue
            await self._took(sent)
            while sent:
                if sent < len(left[0]):
                    left[0] = left[0][sent:]
                    break
                sent -= len(left.popleft())

    async def send_message(self, message: Any, *parts: bytes | memoryview) -> None:
        """A message, and raw bytes behind it."""
        text = msgspec.json.encode(message)
        await self.send(_HEAD.pack(MAGIC, len(text)), text, *parts)

    async def receive_message(self, kind: type[M]) -> M:
        """Raises EOFError at the end of the connection, FramingError for anything else than a message of that kind."""
        head = bytearray(_HEAD.size)
        await self.receive_into(memoryview(head))
        magic, size = _HEAD.unpack(head)
        if magic != MAGIC or size > MOST_MESSAGE_BYTES:
            raise FramingError("what came is not a message of this protocol")
        text = bytearray(size)
        await self.receive_into(memoryview(text))
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError as error:
            raise FramingError(f"a message can't be read: {error}") from None

    async def receive_into(self, view: memoryview) -> None:
        """As many bytes as there are places. Raises EOFError when the connection ends before, OSError."""
        held = min(self._end - self._start, len(view))
        view[:held] = self._buffer[self._start : self._start + held]
        self._start += held
        view = view[held:]
        while len(view):
            if len(view) >= _BUFFER_BYTES:
                count = await self._receive(view)
                view = view[count:]
                continue
            self._start, self._end = 0, await self._receive(self._buffer)
            taken = min(self._end, len(view))
            view[:taken] = self._buffer[:taken]
            self._start = taken
            view = view[taken:]

    async def _receive(self, view: memoryview) -> int:
        count = await self._loop.sock_recv_into(self._sock, view)
        if not count:
            raise EOFError("the connection ended")
        await self._took(count)
        return count

    async def _took(self, count: int) -> None:
        if self._moved is not None:
            self._moved()
        self._turn_bytes += count
        if self._turn_bytes >= _TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)

    async def _writable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        number = self._sock.fileno()
        if number < 0:
            raise OSError("the connection is closed")
        self._loop.add_writer(number, _set, ready)
        try:
            await ready
        finally:
            if self._sock.fileno() >= 0:
                self._loop.remove_writer(number)


def _set(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
