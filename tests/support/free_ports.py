"""Ports of this host that nobody listens at."""

from __future__ import annotations

import os
import random
import socket


def free_port() -> int:
    """One that the system chooses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, below those that the system gives away by itself."""
    rng = random.Random(os.getpid())
    for _ in range(1000):
        first = rng.randrange(18_000, 31_000)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"no {count} free ports in a row")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
