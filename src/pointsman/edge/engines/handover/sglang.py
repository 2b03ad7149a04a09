"""SGLang: both legs meet in a room of the prefill side's bootstrap server, and are sent at once."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import COMPLETIONS, fields, is_list_of_prompts, prompts, usual_refusal
from pointsman.edge.engines.handover.protocol import Asked, Complete, LegRequest, Order, Peer
from pointsman.edge.engines.handover.usual import UsualHandOver
from pointsman.edge.wire.members import edited

BOOTSTRAP_PORT = 8998
"""`--disaggregation-bootstrap-port` where nothing else is said."""
_ROOMS = 2**63
_SPREAD, _NEXT = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9
"""Odd numbers, so that no two requests get one room."""


class Sglang(UsualHandOver):
    """The prefill leg's answer is read and thrown away: logprobs of the prompt would have to be taken from it."""

    handshake = HandShake.SGLANG
    order: Order = Order.TOGETHER
    lease_s: float | None = 300.0
    """A side waits so long for the other one (`SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT`)."""

    def refusal(self, asked: Asked) -> str | None:
        """As all, but that several prompts can go together."""
        return usual_refusal(asked, batches=True)

    def prefill(self, asked: Asked, prefill: Peer, decode: Peer) -> LegRequest:
        """The client's body with the room, not streamed; an engine for prefill ends after the first token by itself."""
        put = {"stream": b"false", **_room(asked, prefill)}
        return LegRequest(edited(asked.body, put, ("stream_options",)))

    def decode(self, asked: Asked, prefill: Peer, decode: Peer, answer: bytes | None) -> LegRequest | Complete:
        """The client's body with the room."""
        return LegRequest(edited(asked.body, _room(asked, prefill)))


def _room(asked: Asked, prefill: Peer) -> dict[str, bytes]:
    host: object = urlsplit(prefill.url).hostname or ""
    port: object = prefill.kv.port or BOOTSTRAP_PORT
    room: object = _number(asked.number, prefill)
    read = fields(asked.body) if asked.path == COMPLETIONS else None
    if read is not None and is_list_of_prompts(read):
        count = prompts(read)
        host, port = [host] * count, [port] * count
        room = [_number(asked.number + place * _NEXT, prefill) for place in range(count)]
    told = {"bootstrap_host": host, "bootstrap_port": port, "bootstrap_room": room}
    return {name: msgspec.json.encode(value) for name, value in told.items()}


def _number(number: int, prefill: Peer) -> int:
    """A room; the rest of its division by the ranks of the prefill engine is the rank that computes the prompt."""
    ranks = prefill.kv.ranks
    if ranks == 1:
        return number * _SPREAD % _ROOMS
    return number % (_ROOMS // ranks) * ranks + prefill.rank % ranks
