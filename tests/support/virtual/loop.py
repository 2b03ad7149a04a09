"""An event loop whose time jumps to the next timer when nothing is ready, over a network in memory."""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from support.virtual.events import FIRST_DESCRIPTOR, EventLines
from support.virtual.network import Network

T = TypeVar("T")

START_S = 1_000.0
"""Not 0: a time that was never set must not look like one of now."""


class NothingHappensError(RuntimeError):
    """Everybody waits, and no timer runs: that would be for ever."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Never waits: the time it was to wait has passed when it returns."""

    advance: Callable[[float], None]

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise NothingHappensError("every task waits and no timer runs")
        self.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Connections and servers go through `network`; what would run in a thread runs at once."""

    def __init__(self) -> None:
        self._now_s = START_S
        selector = _JumpingSelector()
        selector.advance = self._advance
        super().__init__(selector)
        self.network = Network(self)
        self.lines = EventLines(self, self.network)
        self._half_made: dict[int, Any] = {}

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def _advance(self, seconds: float) -> None:
        self._now_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Now, on this thread: a thread's time would be real."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """Of sockets in memory too."""
        if isinstance(fd, int) and fd >= FIRST_DESCRIPTOR:
            self.lines.readers[fd] = partial(callback, *args)
        else:
            super().add_reader(fd, callback, *args)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        """Of sockets in memory too."""
        if isinstance(fd, int) and fd >= FIRST_DESCRIPTOR:
            return self.lines.readers.pop(fd, None) is not None
        return super().remove_reader(fd)

    # ---- names and sockets

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        """Of the network's own names."""
        address = self.network.resolve(str(host))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))]

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """A real socket stands for a connection in memory until a protocol is given for it."""
        self._half_made[sock.fileno()] = await self.network.connect(address[0], address[1])

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        """As of any loop, but `ssl`, which is not known here."""
        if sock is not None:
            made = self._half_made.pop(sock.fileno())
            sock.close()
        else:
            made = await self.network.connect(self.network.resolve(host), port)
        protocol = protocol_factory()
        made.begin(protocol)
        return made, protocol

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Listens at an address of the network."""
        return self.network.listen(protocol_factory, str(host), int(port))


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]], *, most_s: float = 100_000.0) -> T:
    """Run a scene to its end; TimeoutError when it takes more than `most_s` of virtual time."""

    async def bounded() -> T:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with asyncio.timeout(most_s):
            return await main(loop)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(bounded(), context=contextvars.copy_context())
