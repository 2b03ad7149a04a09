"""Request: who asks, for what, and what of it may be cached somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pointsman.core.model.blocks import NO_KEYS, BlockKeys
from pointsman.core.model.slo import Slo
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.worker import WorkerId


@dataclass(frozen=True, slots=True)
class Request:
    """One request as policies and the ledger see it. Never holds the text of the prompt."""

    id: str
    model: str
    arrival_ms: float
    prompt_tokens: int
    """Exact where the prompt was tokenized, otherwise estimated from its length."""
    blocks: BlockKeys = NO_KEYS
    token_blocks: Mapping[KeySpec, BlockKeys] = field(default_factory=dict)
    """Keys of the tokenized prompt for each way in which engines of its model cut blocks; empty if it was not."""
    sequences: int = 1
    """`n`: answers asked for, which the engine decodes side by side."""
    streamed: bool = True
    """Its tokens come as they are generated; else the whole answer at its end."""
    route_key: str | None = None
    """What `routing.route_key` selects: requests with equal keys belong together."""
    tenant: str | None = None
    api: str = ""
    """What it was asked by: chat, completions, …; requests of one kind are alike in length."""
    max_output_tokens: int | None = None
    """Its own limit of the answer."""
    slo: Slo | None = None
    pinned_worker: WorkerId | None = None
    """Set by the debug header `x-pointsman-worker`: only this worker may answer."""
