"""Slo: what a request was promised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slo:
    """Times that a request has to keep to be worth something; None = not promised."""

    ttft_ms: float | None = None
    """From its arrival to its first token."""
    tpot_ms: float | None = None
    """Mean time between its tokens."""
    name: str | None = None
    """Of the class that the times come from."""
