"""Connectors that pass KV through storage which both engines see (shared storage, LMCache): no word in the requests."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import prompt_only
from pointsman.edge.engines.handover.protocol import Asked, Complete, LegRequest, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver


class SharedStorage(UsualHandOver):
    """The same prompt first at one engine, which stores it, then at the other one, which finds it."""

    handshake = HandShake.SHARED_STORAGE
    lease_s: float | None = None
    """The storage keeps what it has room for; no blocks of the engine are held."""

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token."""
        return LegRequest(prompt_only(asked))

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body as it is. What the storage lost meanwhile is computed again, unsaid."""
        return LegRequest(asked.body)
