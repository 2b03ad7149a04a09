"""Bounds of what a client of the server may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of what a client may take. Sizes in bytes, times in seconds."""

    max_head_bytes: int = 65536
    max_headers: int = 128
    max_body_bytes: int = 64 * 1024 * 1024
    head_timeout_s: float = 30.0
    """From the first byte of a request to its complete head, and from a new connection to its first byte."""
    body_timeout_s: float = 60.0
    """Without a byte of a body that has begun."""
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 300.0
    """Without a byte read by a client that has an answer waiting."""
    max_connections: int | None = None
