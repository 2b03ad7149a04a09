"""What the formulas of peers are made of, out of one view."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, FleetView

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Facts:
    """One entry a worker of the view. Tokens, unless it says otherwise."""

    prompt: int
    matched: Floats
    """Leading tokens of the prompt that it holds."""
    new: Floats
    """Tokens of the prompt that it would compute."""
    batch: Floats
    """Requests there, running and waiting."""
    waiting: Floats
    """Requests there that wait to be scheduled."""
    prefill: Floats
    """Uncached prompt tokens there whose first token has not come."""
    used: Floats
    """KV tokens in use."""
    capacity: Floats
    """KV tokens that it has room for."""

    @property
    def kv_use(self) -> Floats:
        """Share of the KV cache in use, 0..1."""
        return self.used / self.capacity

    @property
    def queue_score(self) -> Floats:
        """1 at the shortest queue, 0 at the longest one, 1 everywhere if all are equal."""
        most, least = self.waiting.max(), self.waiting.min()
        return (most - self.waiting) / (most - least) if most > least else np.ones(len(self.waiting))


def facts(request: Request, view: FleetView) -> Facts:
    """Read a view."""
    matched = view.column(Column.CACHED_TOKENS).astype(np.float64)
    return Facts(
        prompt=request.prompt_tokens,
        matched=matched,
        new=request.prompt_tokens - matched,
        batch=view.load.astype(np.float64),
        waiting=view.column(Column.QUEUED).astype(np.float64),
        prefill=view.column(Column.PREFILL_TOKENS).astype(np.float64),
        used=view.column(Column.KV_USED_TOKENS).astype(np.float64),
        capacity=np.maximum(view.column(Column.KV_CAPACITY_TOKENS).astype(np.float64), 1.0),
    )
