"""Flight: one request of the trace on its way through the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.app.simulate.prompts import Prompt
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.model.request import Request
from pointsman.core.workload.trace import TraceRequest


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
    sequence: Sequence | None = None
    """What the engine computes for it; None while it is at none."""
    started: bool = False
    """It had its first token."""
    reported_tokens: int = 0
    """Tokens that the ledger has heard of."""
