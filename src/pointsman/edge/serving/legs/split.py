"""Split: what one attempt of one request has at a second engine: a prompt computed there, or a beginning held there."""

from __future__ import annotations

from dataclasses import dataclass

from pointsman.core.model.plan import Aggregate, Disaggregate
from pointsman.core.model.request import Request
from pointsman.core.model.worker import WorkerId
from pointsman.edge.decisions.legs import LegsTold
from pointsman.edge.engines.handover.protocol import Asked, HandOver, Moved, Peer
from pointsman.edge.serving.legs.engine_call import EngineCall
from pointsman.edge.wire.usage import Usage

APART, PULL = "apart", "pull"
"""Kinds, as metrics name them."""


@dataclass(slots=True)
class Split:
    """From the decision to the end of the attempt. Times in ms of the front end's clock."""

    request: Request
    plan: Disaggregate | Aggregate
    handover: HandOver
    other: Peer
    """The one that computes the prompt, or holds its beginning."""
    answering: Peer
    began_ms: float
    fallback_to_local: bool
    """What can't be moved may be computed where the request is answered."""
    asked: Asked | None = None
    call: EngineCall | None = None
    """The leg at `other`, from when it was sent."""
    answer: bytes | None = None
    """Of that leg, while something is held there for this request."""
    usage: Usage | None = None
    """By that leg's word."""
    prefill_ms: float | None = None
    fetch_from_ms: float | None = None
    """The KV could be fetched from then on."""
    transfer_ms: float | None = None
    tokens: int | None = None
    moved: Moved | None = None
    fallback: str | None = None
    """Why nothing was moved after all."""
    lost_ms: float | None = None
    """From the decision until that was clear."""
    done: bool = False
    """All is told; nothing is held any more."""

    @property
    def kind(self) -> str:
        """As metrics name it."""
        return APART if self.is_prefill else PULL

    @property
    def is_prefill(self) -> bool:
        """A prompt is computed there, not just held."""
        return isinstance(self.plan, Disaggregate)

    @property
    def calling(self) -> EngineCall | None:
        """The leg, while it is on its way."""
        return None if self.call is None or self.call.over else self.call

    @property
    def prefill(self) -> WorkerId | None:
        """Who computed the prompt for another one; None: nobody did."""
        return self.other.worker if self.is_prefill and self.fallback is None else None

    def told(self) -> LegsTold:
        """For people."""
        moved = self.moved or Moved()
        return LegsTold(
            prefill=self.other.worker if self.is_prefill else None,
            source=None if self.is_prefill else self.other.worker,
            prefill_ms=self.prefill_ms,
            transfer_ms=self.transfer_ms if moved.took_ms is None else moved.took_ms,
            moved_tokens=self.tokens if moved.tokens is None else moved.tokens,
            moved_bytes=moved.size_bytes,
            cached_tokens=None if self.usage is None else self.usage.cached_tokens,
            transport=moved.transport,
            lost_ms=self.lost_ms,
            fallback=self.fallback,
        )
