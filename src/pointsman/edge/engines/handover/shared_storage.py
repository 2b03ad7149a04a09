"""Connectors that pass KV through storage which both engines see (shared storage, LMCache): no word in the requests."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import prompt_only, usual_refusal
from pointsman.edge.engines.handover.protocol import Asked, Complete, LegRequest, Moved, Order, Peer


class SharedStorage:
    """The same prompt first at one engine, which stores it, then at the other one, which finds it."""

    handshake = HandShake.SHARED_STORAGE
    order = Order.PREFILL_FIRST
    lease_s: float | None = None
    """The storage keeps what it has room for; no blocks of the engine are held."""

    def refusal(self, asked: Asked) -> str | None:
        """As all; there is nothing that only this one can't do."""
        return usual_refusal(asked)

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token."""
        return LegRequest(prompt_only(asked))

    def between(self, asked: Asked, prefill: Peer, decode: Peer) -> tuple[LegRequest, ...]:
        """Nothing."""
        return ()

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body as it is. What the storage lost meanwhile is computed again, unsaid."""
        return LegRequest(asked.body)

    def hold(self, asked: Asked, source: Peer, tokens: int) -> LegRequest | None:
        """The storage is asked by the engine itself."""
        return None

    def pull(self, asked: Asked, source: Peer, target: Peer, answer: bytes) -> tuple[LegRequest, int]:
        """Never asked: `hold` gives nothing."""
        raise NotImplementedError("engines with shared storage hold nothing for each other")

    def release(self, source: Peer, answer: bytes) -> LegRequest | None:
        """Nothing is held."""
        return None

    def moved(self, body: bytes) -> Moved | None:
        """Only its metrics tell."""
        return None
