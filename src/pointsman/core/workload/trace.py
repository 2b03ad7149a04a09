"""Trace: the requests that a fleet got, or may get: when, how long, and which of them share beginnings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.core.model.errors import TraceError

MOST_TOKENS = 2**31 - 1
"""Lengths above are no lengths but mistakes, for example of the unit."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Lengths in tokens, times in ms from the trace's start."""

    at_ms: float
    """When it arrives. With `after`: when it did; replayed, it comes `gap_ms` after the answer it waits for."""
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    """One id for each block of the prompt, a last one that is not full included, chained: two requests have the same
    id exactly where they have the same prompt up to the end of that block. Empty: nothing is known."""
    answer_block_ids: tuple[int, ...] = ()
    """Ids of the blocks that prompt and answer fill together, from the first one that the prompt does not fill on;
    empty: nobody repeats the answer, or nothing is known."""
    session: str | None = None
    """Requests of one conversation, user or agent run."""
    after: int | None = None
    """Position in the trace of the request whose answer it waits for."""
    gap_ms: float = 0.0
    """Thinking or tool time between that answer and this request."""
    tenant: str | None = None
    model: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of `at_ms`. Raises TraceError that names the first request that can't be."""

    name: str
    requests: Sequence[TraceRequest]
    block_tokens: int = 0
    """Tokens a block of `block_ids`; 0: no request has any."""
    source: str = ""
    """Where it comes from, and what of it is made up."""

    def __post_init__(self) -> None:
        before_ms = 0.0
        for position, request in enumerate(self.requests):
            fault = _fault(request, position, before_ms, self.block_tokens)
            if fault:
                raise TraceError(f"trace {self.name}, request {position}: {fault}")
            before_ms = request.at_ms

    @property
    def duration_ms(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_ms - self.requests[0].at_ms if self.requests else 0.0

    def __len__(self) -> int:
        return len(self.requests)


def _fault(request: TraceRequest, position: int, before_ms: float, block_tokens: int) -> str | None:
    if not math.isfinite(request.at_ms):
        return f"it arrives at {request.at_ms} ms"
    if request.at_ms < before_ms:
        return f"it arrives at {request.at_ms} ms, before the one before it ({before_ms} ms)"
    for name, tokens in (("prompt", request.prompt_tokens), ("output", request.output_tokens)):
        if not 1 <= tokens <= MOST_TOKENS:
            return f"its {name} has {tokens} tokens; at least 1 and at most {MOST_TOKENS} are expected"
    if request.after is not None and not 0 <= request.after < position:
        return f"it waits for request {request.after}, which does not come before it"
    if not 0 <= request.gap_ms < math.inf:
        return f"gap_ms is {request.gap_ms}"
    blocks = len(request.block_ids)
    if blocks and (block_tokens < 1 or blocks > -(-request.prompt_tokens // block_tokens)):
        return f"{blocks} block ids for {request.prompt_tokens} tokens in blocks of {block_tokens}"
    return None
