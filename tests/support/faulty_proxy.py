"""A TCP proxy on loopback whose connections can be reset, left half open, or slowed to a drip."""

from __future__ import annotations

import asyncio
import socket
import struct


class FaultyProxy:
    """Passes bytes on to a port of this host until it is told otherwise."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self.drip_s: float | None = None
        """Each byte of an answer takes that long."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections that pass through."""
        return len(self._pairs)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def reset(self) -> None:
        """RST to both sides of every connection; new ones pass."""
        for pair in tuple(self._pairs):
            pair.reset()

    def half_open(self) -> None:
        """From now on nothing passes through the connections that there are, and nobody is told; new ones pass."""
        for pair in self._pairs:
            pair.dead = True

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for pair in tuple(self._pairs):
            pair.reset()
        await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _reset(writer)
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(
                self._pass(pair, reader, far_writer, answers=False), self._pass(pair, far_reader, writer, answers=True)
            )
        finally:
            self._pairs.discard(pair)
            pair.close()

    async def _pass(
        self, pair: _Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if pair.dead:
                    continue
                if answers and self.drip_s is not None:
                    await self._drip(data, writer)
                else:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pair.reset()
            return
        if pair.dead:
            await asyncio.Event().wait()  # it ended, and its end goes nowhere either
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    async def _drip(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
            if self.drip_s is None:
                writer.write(data[at + 1 :])
                return
            await asyncio.sleep(self.drip_s)


class _Pair:
    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._ends = (near, far)
        self.dead = False

    def reset(self) -> None:
        for end in self._ends:
            _reset(end)

    def close(self) -> None:
        for end in self._ends:
            end.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
