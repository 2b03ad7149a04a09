"""TCP keep-alive: the other side that vanished without a word is found out although nothing is to be sent to it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

_IDLE_S: Final = 15
_INTERVAL_S: Final = 5
_PROBES: Final = 3
UNANSWERED_S: Final = _IDLE_S + _PROBES * _INTERVAL_S
"""After so long without a sign of the other side's kernel a connection is given up."""

_OPTIONS: Final = tuple(
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", _IDLE_S), ("TCP_KEEPINTVL", _INTERVAL_S), ("TCP_KEEPCNT", _PROBES))
    if hasattr(socket, name)
)
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)


def keep_alive(transport: asyncio.BaseTransport, *, also_unread: bool = False) -> None:
    """Have the kernel ask every few seconds whether the other side is there; a process that hangs counts as there.

    `also_unread`: it is given up as well when it takes nothing of what was sent for as long.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    with suppress(OSError):  # a Unix socket has none of it, and an end that is closed already needs none
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if also_unread and _USER_TIMEOUT is not None:
            sock.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, UNANSWERED_S * 1000)
