"""Legs of SGLang."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import Order
from pointsman.edge.engines.handover.registry import handover_of
from support.handovers import COMPLETIONS, MESSAGES, NUMBER, asked_for, peer, read

SGLANG = handover_of(HandShake.SGLANG)
P, D = peer("p", HandShake.SGLANG, port=9100), peer("d", HandShake.SGLANG, port=9200)
ROOM = ("bootstrap_host", "bootstrap_port", "bootstrap_room")


def test_both_legs_go_at_once_to_one_room_of_the_prefill_side() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}, "n": 1}
    asked = asked_for(body)
    prefill, decode = read(SGLANG.prefill(asked, P, D)), read(SGLANG.decode(asked, P, D, None))
    assert SGLANG.order is Order.TOGETHER
    assert {name: prefill.pop(name) for name in ROOM} == {name: decode[name] for name in ROOM}
    assert (decode.pop("bootstrap_host"), decode.pop("bootstrap_port")) == ("p", 9100)
    assert 0 <= decode.pop("bootstrap_room") < 2**63
    assert prefill == {"model": "m", "messages": MESSAGES, "stream": False, "n": 1}
    assert decode == body


def test_no_two_requests_get_one_room() -> None:
    rooms = set()
    for number in range(NUMBER, NUMBER + 500):
        leg = read(
            SGLANG.decode(asked_for({"model": "m", "prompt": ["a"] * 4}, COMPLETIONS, number=number), P, D, None)
        )
        rooms |= set(leg["bootstrap_room"])
    assert len(rooms) == 2000
    assert all(0 <= room < 2**63 for room in rooms)


def test_the_room_is_one_of_the_rank_that_was_chosen() -> None:
    rooms = set()
    for rank in range(3):
        prefill = replace(peer("p", HandShake.SGLANG, ranks=3), rank=rank)
        for number in (NUMBER, NUMBER + 1, 2**62):
            body = {"model": "m", "prompt": ["a", "b"]}
            leg = read(SGLANG.decode(asked_for(body, COMPLETIONS, number=number), prefill, D, None))
            assert {room % 3 for room in leg["bootstrap_room"]} == {rank}
            rooms |= set(leg["bootstrap_room"])
    assert len(rooms) == 18
    assert all(0 <= room < 2**63 for room in rooms)


@pytest.mark.parametrize("number", [2**42, 2**62])
def test_rooms_fit_their_field(number: int) -> None:
    leg = read(SGLANG.decode(asked_for({"model": "m", "messages": MESSAGES}, number=number), P, D, None))
    assert 0 <= leg["bootstrap_room"] < 2**63


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]])
def test_several_prompts_get_a_room_each(prompt: list[object]) -> None:
    asked = asked_for({"model": "m", "prompt": prompt}, COMPLETIONS)
    assert SGLANG.refusal(asked) is None
    leg = read(SGLANG.prefill(asked, P, D))
    assert leg["bootstrap_host"] == ["p", "p"]
    assert leg["bootstrap_port"] == [9100, 9100]
    assert len(set(leg["bootstrap_room"])) == 2


@pytest.mark.parametrize(("prompt", "is_list"), [(["a"], True), ([[1, 2]], True), ([1, 2], False), ("a", False)])
def test_a_list_with_one_prompt_is_a_list_and_one_of_token_ids_is_none(prompt: object, is_list: bool) -> None:
    leg = read(SGLANG.decode(asked_for({"model": "m", "prompt": prompt}, COMPLETIONS), P, D, None))
    assert [isinstance(leg[name], list) for name in ROOM] == [is_list] * 3


def test_the_usual_port_is_taken_where_none_is_known() -> None:
    prefill = peer("p", HandShake.SGLANG, "http://[fd00::1]:30000")
    leg = read(SGLANG.decode(asked_for({"model": "m", "messages": MESSAGES}), prefill, D, None))
    assert (leg["bootstrap_host"], leg["bootstrap_port"]) == ("fd00::1", 8998)


@pytest.mark.parametrize("extra", [{"echo": True, "logprobs": 2}, {"n": 2}, {"bootstrap_host": "10.0.0.1"}])
def test_what_only_the_other_leg_would_know_is_refused(extra: dict[str, object]) -> None:
    assert SGLANG.refusal(asked_for({"model": "m", "prompt": "x"} | extra, COMPLETIONS)) is not None
