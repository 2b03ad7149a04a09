"""llama.cpp: the slot of a prompt is saved to a file in a directory that both servers see, and restored there."""

from __future__ import annotations

import msgspec

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import prompt_only
from pointsman.edge.engines.handover.protocol import Asked, Complete, LegRequest, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver
from pointsman.edge.wire.members import edited

_SLOT = "id_slot"


class LlamaCppSlots(UsualHandOver):
    """What another request takes from a slot meanwhile is computed again: a server compares tokens, not names.

    Files have names that are never used twice, since one that is written anew while it is read would be wrong unseen.
    Nobody but the operator can delete them.
    """

    handshake = HandShake.LLAMACPP_SLOTS
    lease_s: float | None = None
    """Nothing is held: a slot is free after its request."""

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The prompt and one token, in a slot that is known by its number."""
        return LegRequest(prompt_only(asked, **{_SLOT: _slot(asked, prefill), "cache_prompt": b"true"}))

    def between(self, asked: Asked, prefill: Peer, decode: Peer) -> tuple[LegRequest, ...]:
        """The slot is saved at the one server and restored at the other one."""
        file = msgspec.json.encode({"filename": f"pointsman-{asked.number}.bin"})
        save, restore = _slot(asked, prefill).decode(), _slot(asked, decode).decode()
        return (
            LegRequest(file, f"/slots/{save}?action=save"),
            LegRequest(file, f"/slots/{restore}?action=restore", at_decode=True),
        )

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body, in the slot that was restored."""
        return LegRequest(edited(asked.body, {_SLOT: _slot(asked, decode), "cache_prompt": b"true"}))


def _slot(asked: Asked, peer: Peer) -> bytes:
    """One of its slots, each in turn."""
    return b"%d" % (asked.number % (peer.kv.slots or 1))
