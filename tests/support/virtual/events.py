"""ZMQ sockets in memory: as much of them as feeds of KV events and their publishers use."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from support.virtual.network import HOST, LATENCY_S, Network

FIRST_DESCRIPTOR = 1_000_000
"""From here on descriptors are of memory sockets."""


class EventLines:
    """All memory sockets of one loop: who is bound where, and who waits for what."""

    def __init__(self, loop: asyncio.AbstractEventLoop, network: Network) -> None:
        self.loop, self.network = loop, network
        self.bound: dict[str, MemorySocket] = {}
        self.wanting: dict[str, set[MemorySocket]] = {}
        """Sockets that are connected to an endpoint, or would be if somebody were there."""
        self.readers: dict[int, Callable[[], Any]] = {}
        self.descriptors = itertools.count(FIRST_DESCRIPTOR)
        self.ports = itertools.count(50_000)

    def context(self) -> MemoryContext:
        """Instead of `zmq.Context()`."""
        return MemoryContext(self)


class MemoryContext:
    """A process's sockets."""

    def __init__(self, lines: EventLines) -> None:
        self._lines = lines
        self._sockets: list[MemorySocket] = []

    def socket(self, kind: int) -> MemorySocket:
        made = MemorySocket(self._lines, kind)
        self._sockets.append(made)
        return made

    def get(self, option: int) -> int:
        return 65_535

    def set(self, option: int, value: int) -> None:
        """Any number of sockets is fine."""

    def destroy(self, linger: int = 0) -> None:
        for socket in self._sockets:
            socket.close(0)


class MemorySocket:
    """PUB, SUB, ROUTER or DEALER."""

    def __init__(self, lines: EventLines, kind: int) -> None:
        self._lines, self._kind = lines, kind
        self._descriptor = next(lines.descriptors)
        self._host = HOST.get()
        self._inbox: deque[list[bytes]] = deque()
        self._coming: deque[list[bytes]] = deque()
        self._bound: str | None = None
        self._wanted: str | None = None
        self._peers: set[MemorySocket] = set()
        self._monitor: MemorySocket | None = None
        self._unsent: list[list[bytes]] = []
        self.closed = False

    # ---- options nobody needs here

    def setsockopt(self, option: int, value: Any) -> None:
        """Kept by nobody: queues are unbounded and topics are taken apart by the reader."""

    def set_hwm(self, value: int) -> None:
        """Nothing is dropped but by faults."""

    def getsockopt(self, option: int) -> Any:
        if option == zmq.EVENTS:
            return zmq.POLLIN if self._inbox else 0
        if option == zmq.LAST_ENDPOINT:
            return (self._bound or "").encode()
        raise AssertionError(f"option {option} is not known here")

    def fileno(self) -> int:
        return self._descriptor

    # ---- connecting

    def bind(self, endpoint: str) -> None:
        endpoint = endpoint.replace("*:", f"{self._host}:")
        if endpoint.endswith(":*"):
            endpoint = f"{endpoint[:-1]}{next(self._lines.ports)}"
        if endpoint in self._lines.bound:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self._bound = endpoint
        self._lines.bound[endpoint] = self
        for other in list(self._lines.wanting.get(endpoint, ())):
            self._meet_soon(other)

    def connect(self, endpoint: str) -> None:
        scheme, _, place = endpoint.partition("://")
        name, _, port = place.rpartition(":")
        endpoint = f"{scheme}://{self._lines.network.resolve(name)}:{port}"
        self._wanted = endpoint
        self._lines.wanting.setdefault(endpoint, set()).add(self)
        there = self._lines.bound.get(endpoint)
        if there is not None:
            there._meet_soon(self)

    def _meet_soon(self, other: MemorySocket) -> None:
        self._lines.loop.call_later(LATENCY_S, self._meet, other)

    def _meet(self, other: MemorySocket) -> None:
        if self.closed or other.closed or other in self._peers:
            return
        self._peers.add(other)
        other._peers.add(self)
        for end in (self, other):
            end._tell(zmq.Event.HANDSHAKE_SUCCEEDED)
            unsent, end._unsent = end._unsent, []
            for frames in unsent:
                end.send_multipart(frames)

    def close(self, linger: int | None = None) -> None:
        if self.closed:
            return
        self.closed = True
        if self._bound is not None:
            self._lines.bound.pop(self._bound, None)
        if self._wanted is not None:
            self._lines.wanting[self._wanted].discard(self)
        for other in self._peers:
            other._peers.discard(self)
            self._lines.loop.call_later(LATENCY_S, other._tell, zmq.Event.DISCONNECTED)
        self._peers.clear()
        self._lines.readers.pop(self._descriptor, None)

    # ---- watching

    def get_monitor_socket(self, events: int) -> MemorySocket:
        self._monitor = MemorySocket(self._lines, zmq.PAIR)
        return self._monitor

    def disable_monitor(self) -> None:
        self._monitor = None

    def _tell(self, event: int) -> None:
        if self._monitor is not None:
            self._monitor._take([struct.pack("=hi", event, 0), b""])

    # ---- messages

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        if self._kind == zmq.ROUTER:
            for peer in self._peers:
                if peer._identity == frames[0]:
                    peer._take_soon(frames[1:])
            return
        if self._kind == zmq.DEALER:
            if not self._peers:
                self._unsent.append(frames)
            frames = [self._identity, *frames]
        for peer in self._peers:
            peer._take_soon(list(frames))

    @property
    def _identity(self) -> bytes:
        return b"%d" % self._descriptor

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        if not self._inbox or self.closed:
            raise zmq.Again
        return self._inbox.popleft()

    def _take_soon(self, frames: list[bytes]) -> None:
        """Timers of the same moment ring in any order, messages come in theirs."""
        self._coming.append(frames)
        self._lines.loop.call_later(LATENCY_S, lambda: self._take(self._coming.popleft()))

    def _take(self, frames: list[bytes]) -> None:
        if self.closed:
            return
        host = self._lines.network.host(self._host)
        if host.stopped or host.dark:
            self._lines.loop.call_later(0.5, self._take, frames)
            return
        self._inbox.append(frames)
        reader = self._lines.readers.get(self._descriptor)
        if reader is not None:
            self._lines.loop.call_soon(reader)
