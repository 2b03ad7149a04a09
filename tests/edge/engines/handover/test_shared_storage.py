"""Legs of engines that pass KV through storage."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import LegRequest, Order
from pointsman.edge.engines.handover.registry import handover_of
from support.handovers import MESSAGES, asked_for, peer, read

STORAGE = handover_of(HandShake.SHARED_STORAGE)
P, D = peer("p", HandShake.SHARED_STORAGE), peer("d", HandShake.SHARED_STORAGE)


def test_the_same_prompt_goes_first_for_one_token_and_then_as_it_came() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {}, "min_tokens": 4, "max_tokens": 9}
    asked = asked_for(body)
    assert STORAGE.order is Order.PREFILL_FIRST
    assert read(STORAGE.prefill(asked, P, D)) == {"model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 1}
    decode = STORAGE.decode(asked, P, D, b"{}")
    assert isinstance(decode, LegRequest)
    assert decode.body is asked.body
