"""Flight: one request of the trace on its way through the fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

from pointsman.app.simulate.prompts import Prompt
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId
from pointsman.core.workload.trace import TraceRequest


@dataclass(slots=True, eq=False)
class Leg:
    """What of a request goes on at another worker than the one that answers. Mutable."""

    other: int
    """Number of the worker that computes the prompt, or that holds its beginning."""
    id: str
    """What it is there."""
    tokens: int = 0
    """Of a pull: leading tokens of the prompt whose KV is held there."""
    pull: bool = False
    """The beginning of a prompt is fetched; else it is the whole prompt, which is computed there."""
    moving: int | None = None
    """Number of the transfer under way."""
    moved_tokens: int = 0
    """Tokens whose KV it moves."""
    began_ms: float = 0.0
    """When it began."""


@dataclass(slots=True, eq=False)
class Flight:
    """Its state while it is admitted. Mutable."""

    position: int
    """In the trace."""
    asked: TraceRequest
    request: Request
    prompt: Prompt
    retries: int = 0
    """How often it may still be tried again."""
    worker: int = -1
    """Number of the worker that answers."""
    sequence: Sequence | None = None
    """What the engine of that one computes for it; None while it is not there."""
    first_token_ms: float | None = None
    reported_tokens: int = 0
    """Tokens that the ledger has heard of."""
    leg: Leg | None = None
    """Until what is at the other worker was fetched."""
    cached_tokens: int | None = None
    """Prompt tokens found in the cache of the other worker that computed it; None: none did."""
    tried: set[WorkerId] = field(default_factory=set)
    """Workers that could not be reached for it."""
