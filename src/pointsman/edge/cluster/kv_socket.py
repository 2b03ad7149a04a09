"""ZMQ sockets read from the event loop without a future a message."""

from __future__ import annotations

import asyncio
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

_MONITORED: Final = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED


class ZmqReader:
    """Owns a socket; `on_readable` is called on the event loop whenever something may have come. Read until None."""

    def __init__(self, socket: zmq.Socket[bytes], on_readable: asyncio.Event) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._descriptor = socket.fileno()
        self._loop.add_reader(self._descriptor, on_readable.set)
        # The descriptor tells of changes only: what came before it was watched is to be looked for.
        on_readable.set()

    def read(self) -> list[bytes] | None:
        """The frames of the next message; None: nothing there."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def send(self, frames: list[bytes]) -> None:
        """Queue a message; it goes out once somebody is connected."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket; what is not sent is dropped."""
        self._loop.remove_reader(self._descriptor)
        self._socket.close(0)


class Connections:
    """Counts who is connected to a socket."""

    def __init__(self, socket: zmq.Socket[bytes], on_change: asyncio.Event) -> None:
        self._watched = socket
        self._reader = ZmqReader(socket.get_monitor_socket(_MONITORED), on_change)
        self._open = 0

    def read(self) -> tuple[bool, bool]:
        """What happened since the last call: whether a connection was made, whether one broke."""
        made = broke = False
        while (frames := self._reader.read()) is not None:
            event = parse_monitor_message(frames)["event"]
            made = made or event == zmq.Event.HANDSHAKE_SUCCEEDED
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._open += 1
            elif event == zmq.Event.DISCONNECTED and self._open:
                self._open -= 1
                broke = True
        return made, broke

    @property
    def any(self) -> bool:
        """True while at least one is connected."""
        return self._open > 0

    def close(self) -> None:
        """Stop watching."""
        self._watched.disable_monitor()
        self._reader.close()
