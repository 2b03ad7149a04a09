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
    """Without a byte of a body that has begun, and how long it may lag behind `min_body_rate_bytes_per_s`."""
    min_body_rate_bytes_per_s: float = 1024.0
    """Slowest a body may come in the long run. Each body byte pays for its share of a second, and what is saved up is
    never more than `body_timeout_s`: a body that came fast can't trickle for hours."""
    keep_alive_timeout_s: float = 75.0
    write_timeout_s: float = 300.0
    """Without a byte read by a client that has an answer waiting."""
    max_connections: int | None = None
    max_bodies_bytes: int | None = None
    """Bodies of all requests of the server that are being read or answered, together."""
    max_descriptor: int | None = None
    """Highest number of a connection's file descriptor: descriptors are given out from the lowest free number on, so a
    high one says that few are left, whatever took them."""
