"""A port that nobody listens at."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def shut_port() -> Iterator[int]:
    """And that nobody else gets as long as the context lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port
