"""A network in memory: hosts, names, listeners, connections, and all that can happen to them."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pointsman.edge.wire.keepalive import UNANSWERED_S

HOST: contextvars.ContextVar[str] = contextvars.ContextVar("host", default="10.9.9.9")
"""Whose tasks these are: what a task starts to listen or connects is of its host."""

KERNEL_BYTES = 256 * 1024
"""What the two ends' kernels hold of a direction before a writer has to wait."""
LATENCY_S = 0.0002
_BACKLOG = 128


@dataclass
class Host:
    """One machine, or one process with an address of its own."""

    stopped: bool = False
    """SIGSTOP: its kernel accepts and takes bytes, nobody reads, nothing is written."""
    dark: bool = False
    """Nothing goes in or out, and nobody is told."""
    drip_s: float | None = None
    """Each byte that it sends takes that long."""
    ends: set[End] = field(default_factory=set)
    waiting: list[tuple[Listener, End]] = field(default_factory=list)
    """Connections that its kernel took while it was stopped."""


class Network:
    """All hosts of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.hosts: dict[str, Host] = {}
        self._names: dict[str, str] = {}
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ports = itertools.count(40_000)

    def host(self, address: str) -> Host:
        """Known from its first mention on."""
        return self.hosts.setdefault(address, Host())

    # ---- names

    def name(self, name: str, address: str) -> None:
        """A name says this address from now on."""
        self._names[name] = address

    def resolve(self, name: str) -> str:
        """The address of a name; gaierror where nobody knows it."""
        if name.replace(".", "").isdigit():
            return name
        if name not in self._names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self._names[name]

    # ---- listening and connecting

    def listen(self, factory: Callable[[], Any], address: str, port: int) -> MemoryServer:
        """OSError when the address is taken."""
        port = port or next(self._ports)
        if (address, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = Listener(self, factory, address, port, contextvars.copy_context())
        self._listeners[address, port] = listener
        return MemoryServer(self, listener)

    def silence(self, listener: Listener) -> None:
        """Nobody listens there any more."""
        if self._listeners.get((listener.address, listener.port)) is listener:
            del self._listeners[listener.address, listener.port]

    async def connect(self, address: str, port: int) -> End:
        """The near end of a new connection. Hangs where nobody answers."""
        near = self.host(HOST.get())
        await asyncio.sleep(LATENCY_S)
        far = self.host(address)
        if far.dark or near.dark:
            await asyncio.Event().wait()
        listener = self._listeners.get((address, port))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        here = End(self, HOST.get(), (address, port), contextvars.copy_context())
        there = End(self, address, (HOST.get(), next(self._ports)), listener.context)
        here.peer, there.peer = there, here
        near.ends.add(here)
        far.ends.add(there)
        if far.stopped:
            if len(far.waiting) >= _BACKLOG:
                await asyncio.Event().wait()
            far.waiting.append((listener, there))
        else:
            there.context.run(there.begin, listener.factory())
        return here

    # ---- what can happen

    def stop(self, address: str) -> None:
        """SIGSTOP."""
        self.host(address).stopped = True

    def go_on(self, address: str) -> None:
        """SIGCONT."""
        host = self.host(address)
        host.stopped = False
        waiting, host.waiting = host.waiting, []
        for listener, end in waiting:
            if not end.lost:
                end.context.run(end.begin, listener.factory())
        for end in list(host.ends):
            end.wake()

    def reset(self, address: str) -> None:
        """Each connection of a host is reset at both ends; new ones may be made at once."""
        for end in list(self.host(address).ends):
            if end.peer is not None:
                end.peer.break_off()
            end.break_off()

    def half_open(self, address: str) -> None:
        """Whatever is connected now is dead without a word; new connections work."""
        for end in list(self.host(address).ends):
            for side in (end, end.peer):
                if side is not None:
                    side.dead = True
                    self.loop.call_later(UNANSWERED_S, side.unanswered)

    def kill(self, address: str) -> None:
        """SIGKILL: the kernel closes everything; those who listened are gone."""
        host = self.host(address)
        host.stopped = False
        host.waiting.clear()
        for key in [key for key in self._listeners if key[0] == address]:
            del self._listeners[key]
        for end in list(host.ends):
            end.killed()

    def darken(self, address: str) -> None:
        """The host's cable is pulled."""
        self.host(address).dark = True
        for end in list(self.host(address).ends):
            for side in (end, end.peer):
                if side is not None:
                    self.loop.call_later(UNANSWERED_S, side.unanswered)

    def lighten(self, address: str) -> None:
        """It is put back: what was sent meanwhile comes now, late."""
        host = self.host(address)
        host.dark = False
        for end in list(host.ends):
            end.wake()
            if end.peer is not None:
                end.peer.wake()

    def drip(self, address: str, seconds_a_byte: float | None) -> None:
        """What a host sends goes out byte by byte; None: as ever."""
        host = self.host(address)
        host.drip_s = seconds_a_byte
        for end in list(host.ends):
            end.wake()


class Listener:
    """Who listens at an address."""

    def __init__(
        self, network: Network, factory: Callable[[], Any], address: str, port: int, context: contextvars.Context
    ) -> None:
        self.network, self.factory, self.address, self.port, self.context = network, factory, address, port, context


class _Name:
    """Stands for a listening socket."""

    def __init__(self, address: str, port: int) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class MemoryServer:
    """What `create_server` returns."""

    def __init__(self, network: Network, listener: Listener) -> None:
        self._network, self._listener = network, listener
        self.sockets: tuple[_Name, ...] = (_Name(listener.address, listener.port),)

    def close(self) -> None:
        """Listen no more."""
        self._network.silence(self._listener)
        self.sockets = ()

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def wait_closed(self) -> None:
        return None


class _Options:
    """Stands for a connection's socket."""

    family = socket.AF_UNIX
    """Libraries leave options of TCP alone then."""

    def __init__(self) -> None:
        self.keeps_alive = False

    def fileno(self) -> int:
        return 3

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            self.keeps_alive = bool(value)


class End(asyncio.Transport):
    """One end of a connection, as its protocol sees it: a transport."""

    def __init__(self, network: Network, address: str, remote: tuple[str, int], context: contextvars.Context) -> None:
        super().__init__()
        self.network, self.address, self.context = network, address, context
        self.peer: End | None = None
        self.dead = False
        """Bytes go nowhere."""
        self.lost = False
        """`connection_lost` was called or is about to be."""
        self._remote = remote
        self._options = _Options()
        self._protocol: Any = None
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._fin_queued = False
        self._closing = False
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._fin_come = False
        self._eof_told = False
        self._reading = True
        self._writer_waits = False
        self._sending: asyncio.TimerHandle | None = None

    # ---- asyncio's side

    def begin(self, protocol: Any) -> None:
        """Its protocol is here."""
        self._protocol = protocol
        protocol.connection_made(self)
        self.wake()

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._remote
        if name == "sockname":
            return (self.address, 0)
        if name == "socket":
            return self._options
        return default

    def is_closing(self) -> bool:
        return self._closing or self.lost

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.wake()

    def write(self, data: Any) -> None:
        if self.lost or self._closing or self._fin_queued or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._send_soon()
        if not self._writer_waits and self._out_bytes > 2 * KERNEL_BYTES:
            self._writer_waits = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return max(0, self._out_bytes - KERNEL_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (KERNEL_BYTES, 2 * KERNEL_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Kept as they are."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._fin_queued = True
        self._send_soon()

    def close(self) -> None:
        if self.is_closing():
            return
        self._closing = True
        self._fin_queued = True
        self._send_soon()
        if self._out_bytes <= KERNEL_BYTES:
            self._lose(None)

    def abort(self) -> None:
        if self.lost:
            return
        self._closing = True
        if self._inbox:
            self._out.clear()
            self._out_bytes = 0
            if self.peer is not None and not self.dead:
                self.network.loop.call_later(LATENCY_S, self.peer.break_off)
        self._fin_queued = True
        self._send_soon()
        self._lose(None)

    # ---- the network's side

    @property
    def _host(self) -> Host:
        return self.network.host(self.address)

    def wake(self) -> None:
        """Something may go on that could not before."""
        self._send_soon()
        self._deliver_soon()

    def break_off(self) -> None:
        """A reset has come."""
        self._inbox.clear()
        self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def unanswered(self) -> None:
        """Its kernel asked again and again whether the other end is there, and nobody answered."""
        cut_off = self.dead or self._host.dark or (self.peer is not None and self.peer._host.dark)
        if cut_off and self._options.keeps_alive:
            self._inbox.clear()
            self._lose(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def killed(self) -> None:
        """The process is gone; its kernel ends the connection."""
        unread, peer = bool(self._inbox), self.peer
        self._closing = self._fin_queued = True
        if peer is not None and not self.dead and not self._host.dark:
            if unread:
                self.network.loop.call_later(LATENCY_S, peer.break_off)
            else:
                self.network.loop.call_later(2 * LATENCY_S, peer.fin)
        self._lose(None)
        self._host.ends.discard(self)

    def fin(self) -> None:
        """The other end writes no more."""
        self._fin_come = True
        self._deliver_soon()

    def _lose(self, error: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        if self._protocol is not None:
            self.network.loop.call_soon(self._protocol.connection_lost, error, context=self.context)
        if not self._out and not self._fin_queued:
            self._host.ends.discard(self)

    def _send_soon(self) -> None:
        if self._sending is None and (self._out or self._fin_queued):
            self._sending = self.network.loop.call_later(LATENCY_S, self._send, context=self.context)

    def _send(self) -> None:
        self._sending = None
        peer, host = self.peer, self._host
        if peer is None or host.stopped or host.dark or peer._host.dark:
            return
        if self.dead:
            self._out.clear()
            self._out_bytes = 0
            return
        if host.drip_s is not None and self._out:
            self._send_a_byte(host.drip_s, peer)
            return
        while self._out and peer._inbox_bytes < KERNEL_BYTES:
            piece = self._out.popleft()
            self._out_bytes -= len(piece)
            if peer.lost:
                if not self.lost:  # a closed socket answers with a reset
                    self.break_off()
                return
            peer.take(piece)
        self._sent()
        if not self._out and self._fin_queued:
            self._fin_queued = False
            peer.fin()
            self._host.ends.discard(self) if self.lost else None

    def _send_a_byte(self, drip_s: float, peer: End) -> None:
        piece = self._out[0]
        peer.take(piece[:1])
        self._out_bytes -= 1
        if len(piece) == 1:
            self._out.popleft()
        else:
            self._out[0] = piece[1:]
        self._sent()
        self._sending = self.network.loop.call_later(drip_s, self._send, context=self.context)

    def _sent(self) -> None:
        if self._writer_waits and self._out_bytes <= KERNEL_BYTES and not self.lost:
            self._writer_waits = False
            self._protocol.resume_writing()
        if self._closing and not self.lost and self._out_bytes <= KERNEL_BYTES:
            self._lose(None)

    def take(self, piece: bytes) -> None:
        """Bytes have come."""
        self._inbox.append(piece)
        self._inbox_bytes += len(piece)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._inbox or self._fin_come:
            self.network.loop.call_soon(self._deliver, context=self.context)

    def _deliver(self) -> None:
        if self.lost or self._closing or self._protocol is None or not self._reading or self._host.stopped:
            return
        if self._inbox:
            data = b"".join(self._inbox)
            self._inbox.clear()
            self._inbox_bytes = 0
            if self.peer is not None and self.peer._out:
                self.peer._send_soon()
            self._protocol.data_received(data)
        if self._fin_come and not self._eof_told and not self._inbox and not self.lost and not self._closing:
            self._eof_told = True
            if not self._protocol.eof_received():
                self.close()
