"""Time limits of one request, each for a wait of its own kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All in seconds."""

    connect_s: float = 5.0
    first_byte_s: float = 600.0
    """From dispatch to the first byte of the answer."""
    idle_s: float = 300.0
    """Between two bytes of the answer."""
    total_s: float | None = None
    """From arrival to the last byte."""
