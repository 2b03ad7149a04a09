"""Requests that no worker of a fleet can ever hold."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.app.simulate.setup import Setup
from pointsman.core.model.errors import ConfigError
from pointsman.core.workload.trace import Trace


def context_limit(setup: Setup) -> tuple[int, str]:
    """The longest prompt with its first token that the roomiest worker takes, and what limits it."""
    roomiest = max((group.profile for group in setup.groups), key=lambda profile: profile.kv_tokens)
    block_tokens = setup.block_tokens or 1
    limit = roomiest.kv_tokens // block_tokens * block_tokens
    if setup.max_context_tokens is not None and setup.max_context_tokens < limit:
        return setup.max_context_tokens, "the longest context"
    return limit, f"the KV cache of {roomiest.name}"


def oversize_note(trace: Trace, setups: Sequence[Setup]) -> str | None:
    """What to know about requests that are too long. Raises ConfigError when every request is.

    Engines refuse them, so they count as failed.
    """
    limit, what = min((context_limit(setup) for setup in setups), key=lambda each: each[0])
    long = [number for number, request in enumerate(trace.requests) if request.prompt_tokens >= limit]
    if not long:
        return None
    first = trace.requests[long[0]].prompt_tokens
    if len(long) == len(trace):
        raise ConfigError(
            f"every prompt of {trace.name} is longer than {what} ({limit:,} tokens; the first has {first:,}); "
            "choose a profile with a larger one, or another trace"
        )
    return (
        f"{len(long):,} of {len(trace):,} prompts are longer than {what} ({limit:,} tokens), "
        f"the first is request {long[0]} with {first:,}; they are refused and count as failed"
    )
