"""Flight: one request of the trace on its way through the fleet."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.app.simulate.prompts import Prompt
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.model.request import Request
from pointsman.core.model.stage import Stage
from pointsman.core.workload.trace import TraceRequest


@dataclass(slots=True, eq=False)
class Flight:
    """Its state while it is admitted. Mutable."""

    position: int
    """In the trace."""
    asked: TraceRequest
    request: Request
    """What the ledger knows it as: each stage of a split request is one of its own."""
    prompt: Prompt
    retries: int = 0
    """How often it may still be tried again."""
    stage: Stage = Stage.WHOLE
    sequence: Sequence | None = None
    """What the engine computes for it; None while it is at none."""
    first_token_ms: float | None = None
    reported_tokens: int = 0
    """Tokens that the ledger has heard of."""
    holder: int = -1
    """Number of the worker that holds its KV for the one that decodes."""
    held_id: str = ""
    """Its id there."""
