"""WorkerFacts: what is known of a worker besides decisions, for those who explain them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """As a front end tells it when asked; None = unknown."""

    worker: str
    factor: float | None = None
    """How many times as long as others of its class it takes for a step."""
    kv_state: str = ""
    """Of its KV events: off, syncing, partial, complete; empty = unknown."""
    kv_reason: str = ""
    running: int = 0
    """Requests that this front end and its siblings have there."""
    foreign: int = 0
    """Sequences there that its own metrics show besides."""
    queued: int = 0
    """Requests that wait at the engine, by its own metrics."""
    kv_capacity_tokens: int | None = None
    weight: float = 1.0
