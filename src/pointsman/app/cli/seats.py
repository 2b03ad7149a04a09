"""The sockets at which front ends of `serve --processes` listen.

They are the supervisor's: a front end that is replaced or dies takes none of the connections with it that wait there.
The first front end of a seat begins to listen at them: until it does, clients are refused instead of kept waiting.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pointsman.core.model.errors import EngineError
from pointsman.edge.wire.listening import listen_error


@dataclass(frozen=True, slots=True)
class Seat:
    """The sockets of one front end: one an address of its host."""

    client: tuple[socket.socket, ...]
    admin: tuple[socket.socket, ...]

    def close(self) -> None:
        """Of this process; others that have them keep them."""
        for sock in (*self.client, *self.admin):
            with suppress(OSError):
                sock.close()


def take_seat(host: str, port: int, admin_host: str, admin_port: int) -> Seat:
    """Take both ports, the client port shared with other seats. Raises EngineError that names the port."""
    client = _take(host, port, "--port", shared=True)
    try:
        return Seat(client, _take(admin_host, admin_port, "--admin-port", shared=False))
    except EngineError:
        Seat(client, ()).close()
        raise


def _take(host: str, port: int, flag: str, *, shared: bool) -> tuple[socket.socket, ...]:
    taken: list[socket.socket] = []
    try:
        for family, address in _addresses(host, port):
            if port == 0 and taken:  # a free port was found for the first address
                address = (address[0], taken[0].getsockname()[1], *address[2:])
            taken.append(_bound(family, address, shared=shared))
    except OSError as error:
        Seat(tuple(taken), ()).close()
        raise listen_error(host, port, flag, error) from error
    return tuple(taken)


def _addresses(host: str, port: int) -> Sequence[tuple[socket.AddressFamily, tuple[object, ...]]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _bound(family: socket.AddressFamily, address: tuple[object, ...], *, shared: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
