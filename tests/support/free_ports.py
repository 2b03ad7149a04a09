"""Ports of this host that nobody listens at, and that nobody else who asks here is given.

They lie below those that the system gives away by itself: a server often takes its port long after it was told it, or
takes it once more after it was killed, and meanwhile no connection of anybody must have got it. Each process has a
range to itself, also among those of other runs.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FIRST, _END = 18_000, 31_000
_RANGE = 500


def free_port() -> int:
    """One that was not given lately."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row, none of which was given lately."""
    row: list[int] = []
    for _ in range(2 * _RANGE):
        port = next(_candidates)
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
    """All of this process's range, round and round."""
    first = _own_range()
    while True:
        yield from range(first, first + _RANGE)


_candidates = _walk()


def _own_range() -> int:
    """First port of a range that is nobody else's for as long as this process lives."""
    folder = Path(tempfile.gettempdir()) / f"pointsman-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in range(_FIRST, _END, _RANGE):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
        else:
            return first  # it is locked until the process ends, which closes it
    raise AssertionError(f"all ranges of ports from {_FIRST} to {_END} are taken by other test processes")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False
