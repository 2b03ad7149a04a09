"""Legs of llama.cpp, and the calls between them."""

from __future__ import annotations

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import Order
from pointsman.edge.engines.handover.registry import HAND_OVERS, handover_of
from support.handovers import MESSAGES, NUMBER, asked_for, peer, read

SLOTS = handover_of(HandShake.LLAMACPP_SLOTS)
P, D = peer("p", HandShake.LLAMACPP_SLOTS, slots=4), peer("d", HandShake.LLAMACPP_SLOTS, slots=3)


def test_a_slot_is_filled_saved_restored_and_gone_on_from() -> None:
    asked = asked_for({"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 9, "cache_prompt": False})
    assert SLOTS.order is Order.PREFILL_FIRST
    prefill, (save, restore), decode = (
        SLOTS.prefill(asked, P, D),
        SLOTS.between(asked, P, D),
        SLOTS.decode(asked, P, D, b"{}"),
    )
    there, here = NUMBER % 4, NUMBER % 3
    assert read(prefill) == {
        "model": "m", "messages": MESSAGES, "stream": False, "max_tokens": 1, "cache_prompt": True, "id_slot": there
    }  # fmt: skip
    assert (save.path, save.at_decode) == (f"/slots/{there}?action=save", False)
    assert (restore.path, restore.at_decode) == (f"/slots/{here}?action=restore", True)
    assert read(save) == read(restore) == {"filename": f"pointsman-{NUMBER}.bin"}
    assert read(decode) == {
        "model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 9, "cache_prompt": True, "id_slot": here
    }  # fmt: skip


def test_no_two_transfers_share_a_file_and_slots_are_taken_in_turn() -> None:
    legs = [
        SLOTS.between(asked_for({"model": "m", "messages": MESSAGES}, number=n), P, D)
        for n in range(NUMBER, NUMBER + 12)
    ]
    assert len({read(save)["filename"] for save, _ in legs}) == 12
    assert len({save.path for save, _ in legs}) == 4


def test_nobody_else_needs_calls_between_the_legs() -> None:
    asked = asked_for({"model": "m", "messages": MESSAGES})
    for handshake, each in HAND_OVERS.items():
        calls = each.between(asked, peer("p", handshake), peer("d", handshake))
        assert bool(calls) is (handshake is HandShake.LLAMACPP_SLOTS)
