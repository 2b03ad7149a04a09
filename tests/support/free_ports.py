"""Ports of this host that nobody listens at.

They lie below those that the system gives away by itself: a server often takes its port long after it was told it, or
takes it once more after it was killed, and meanwhile no connection of anybody must have got it.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_FIRST, _END = 18_000, 31_000
_SHARES = 8
"""Test processes that run side by side choose from different ones."""


def free_port() -> int:
    """One that was never given before in this process."""
    return free_ports(1)


@contextmanager
def shut_port() -> Iterator[int]:
    """One that nobody listens at, and that nobody else gets as long as the context lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, none of which was given before in this process."""
    row: list[int] = []
    for port in itertools.islice(_candidates, 2 * (_END - _FIRST)):
        if not _is_free(port):
            row.clear()
            continue
        if row and port != row[-1] + 1:
            row.clear()
        row.append(port)
        if len(row) == count:
            return row[0]
    raise AssertionError(f"no {count} free ports in a row")


def _walk() -> Iterator[int]:
    """All of this process's share, round and round, from a place that another session hardly begins at."""
    size = (_END - _FIRST) // _SHARES
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    first = _FIRST + size * (int(number) % _SHARES)
    at = random.Random(os.getpid()).randrange(size)
    while True:
        yield first + at
        at = (at + 1) % size


_candidates = _walk()


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
