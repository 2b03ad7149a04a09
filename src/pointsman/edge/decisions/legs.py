"""LegsTold: what came of the part of a request that moved KV, or was to: told by whoever carried it out."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.worker import WorkerId


@dataclass(frozen=True, slots=True)
class LegsTold:
    """Of one request. `None`: it had no such part, or nobody said."""

    prefill: WorkerId | None = None
    """The worker that computed the prompt, or was to."""
    source: WorkerId | None = None
    """The worker that the beginning of the prompt was fetched from, or was to be."""
    prefill_ms: float | None = None
    """From the dispatch to the answer of the prefill worker."""
    transfer_ms: float | None = None
    """As the engine told it, else from the end of the prefill leg to when the KV was there."""
    moved_tokens: int | None = None
    """Tokens whose KV was moved."""
    moved_bytes: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, that the worker which computed it for another one found cached, by its word."""
    transport: str | None = None
    """Such as nixl, shm, tcp."""
    lost_ms: float | None = None
    """From the dispatch to when it was clear that nothing comes."""
    fallback: str | None = None
    """Why the answering worker computed it all the same; None: it did not."""
