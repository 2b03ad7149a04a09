"""What hand-shakes have in common, where they say nothing else."""

from __future__ import annotations

from pointsman.edge.engines.handover.fields import usual_refusal
from pointsman.edge.engines.handover.protocol import Asked, LegRequest, Moved, Order, Peer


class UsualHandOver:
    """Prefill first, nothing between the legs, nothing held for others, nothing to free, nothing told of transfers."""

    order: Order = Order.PREFILL_FIRST

    def refusal(self, asked: Asked) -> str | None:
        """As all; there is nothing that only this one can't do."""
        return usual_refusal(asked)

    def between(self, asked: Asked, prefill: Peer, decode: Peer) -> tuple[LegRequest, ...]:
        """Nothing."""
        return ()

    def hold(self, asked: Asked, source: Peer, tokens: int) -> LegRequest | None:
        """It keeps nothing that it is not asked to compute."""
        return None

    def pull(self, asked: Asked, source: Peer, target: Peer, answer: bytes) -> tuple[LegRequest, int]:
        """Never asked: `hold` gives nothing."""
        raise NotImplementedError("engines of this hand-shake hold no parts of prompts for each other")

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """No call frees what is held: a time limit of the engine does, or the end of the other leg."""
        return None

    def moved(self, body: bytes) -> Moved | None:
        """Only its metrics tell."""
        return None
