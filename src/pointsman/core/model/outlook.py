"""Outlook: what the ledger expects of one request and has learned of the fleet, beside the numbers of workers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outlook:
    """Learned from what ended before; part of the view, so that a recorded view decides again as it did."""

    output_tokens: float = 256.0
    """Expected length of the answer, its own limit considered; for n answers of one of them."""
    answers_seen: float = 0.0
    """Answers that the expectation rests on, older ones counting less; 0 = a guess."""
    reuse: float = 0.0
    """Share of KV tokens evicted by the last worker that held them that had to be computed again later, 0 to 1, among
    those of which that is known by now."""
    evictions_seen: float = 0.0
    """Evicted tokens that `reuse` rests on, older ones counting less; 0 = nothing was seen yet."""
    found_tokens: float = 0.0
    """Of recent prompts for its model, what was thought to be in the cache where they went; older ones count less."""
    computed_tokens: float = 0.0
    """The others of these."""
    arrivals_per_s: float = 0.0
    """Requests a second for its model lately, for all workers together."""
    adapter_load_ms: float = 0.0
    """How much later the first token comes at a worker that has to load the request's LoRA adapter first."""


NO_OUTLOOK = Outlook()
