"""Legs and calls of the embedded engine."""

from __future__ import annotations

import json

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import HandOverError, LegRequest, Moved, Order
from pointsman.edge.engines.handover.registry import HAND_OVERS, handover_of
from support.handovers import COMPLETIONS, MESSAGES, asked_for, peer, read

BLOCKS = handover_of(HandShake.BLOCKS)
P, D = peer("p", HandShake.BLOCKS), peer("d", HandShake.BLOCKS)
TOLD = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[4, 5]],
    "remote_engine_id": "e",
    "remote_request_id": "r-7",
    "remote_host": "127.0.0.1",
    "remote_port": 4000,
    "tp_size": 1,
    "remote_num_tokens": 32,
    "block_size": 16,
    "fingerprint": "f",
}


def test_every_one_answers_to_its_own_name() -> None:
    assert set(HAND_OVERS) == set(HandShake)
    assert all(each.handshake is handshake for handshake, each in HAND_OVERS.items())


def test_its_legs_are_those_of_vllm() -> None:
    asked = asked_for({"model": "m", "messages": MESSAGES, "max_tokens": 9})
    nixl = handover_of(HandShake.VLLM_NIXL)
    answer = json.dumps({"kv_transfer_params": TOLD}).encode()
    assert BLOCKS.order is Order.PREFILL_FIRST
    assert BLOCKS.prefill(asked, P, D) == nixl.prefill(asked, P, D)
    assert BLOCKS.decode(asked, P, D, answer) == nixl.decode(asked, P, D, answer)


def test_a_part_is_held_by_the_prompt_or_by_its_ids() -> None:
    asked = asked_for({"model": "m", "messages": MESSAGES, "tools": [], "cache_salt": "s", "stream": True, "user": "u"})
    leg = BLOCKS.hold(asked, P, 32)
    assert isinstance(leg, LegRequest)
    assert leg.path == "/kv/hold"
    assert read(leg) == {"model": "m", "messages": MESSAGES, "tools": [], "cache_salt": "s", "max_tokens": 32}
    by_ids = BLOCKS.hold(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS, prompt_ids=(5, 6)), P, 2)
    assert read(by_ids) == {"model": "m", "token_ids": [5, 6], "max_tokens": 2}


@pytest.mark.parametrize("wrap", [True, False])
def test_what_is_held_goes_into_the_request_unchanged(wrap: bool) -> None:
    answer = json.dumps({"kv_transfer_params": TOLD} if wrap else TOLD).encode()
    leg, tokens = BLOCKS.pull(asked_for({"model": "m", "messages": MESSAGES, "max_tokens": 9}), P, D, answer)
    assert read(leg) == {"model": "m", "messages": MESSAGES, "max_tokens": 9, "kv_transfer_params": TOLD}
    assert tokens == 32


@pytest.mark.parametrize("answer", [{"remote_num_tokens": 0}, {}, {"kv_transfer_params": {"remote_num_tokens": None}}])
def test_nothing_held_is_nothing_to_pull(answer: dict[str, object]) -> None:
    with pytest.raises(HandOverError, match="p/0 holds nothing"):
        BLOCKS.pull(asked_for({"model": "m", "messages": MESSAGES}), P, D, json.dumps(answer).encode())


def test_an_answer_that_is_no_json_is_nothing_to_pull() -> None:
    with pytest.raises(HandOverError, match="not as documented"):
        BLOCKS.pull(asked_for({"model": "m", "messages": MESSAGES}), P, D, b"<html>")


@pytest.mark.parametrize("wrap", [True, False])
def test_what_is_kept_is_freed_by_its_name(wrap: bool) -> None:
    leg = BLOCKS.release(P, json.dumps({"kv_transfer_params": TOLD} if wrap else TOLD).encode())
    assert isinstance(leg, LegRequest)
    assert (leg.path, read(leg)) == ("/kv/release", {"remote_request_id": "r-7"})


def test_without_a_name_its_lease_frees_it() -> None:
    assert BLOCKS.release(P, b'{"kv_transfer_params":null}') is None


def test_answers_and_events_tell_what_was_moved() -> None:
    told = {"transferred_tokens": 32, "transferred_bytes": 4096, "transfer_ms": 1.5, "transport": "shm"}
    body = json.dumps({"choices": [], "kv_transfer_params": {"pointsman_transfer": told}}).encode()
    assert BLOCKS.moved(body) == Moved(32, 4096, 1.5, "shm")
    assert BLOCKS.moved(b'{"choices":[]}') is None
    assert BLOCKS.moved(b"[DONE]") is None


@pytest.mark.parametrize(
    "told",
    [
        {"transferred_tokens": -1},
        {"transferred_bytes": -4096},
        {"transfer_ms": -0.1},
        {"transferred_bytes": 10**30},
        {"transport": "x" * 1000},
    ],
)
def test_what_can_not_be_is_not_believed(told: dict[str, object]) -> None:
    """It would make counters fall, and records large."""
    usual = {"transferred_tokens": 32, "transferred_bytes": 4096, "transfer_ms": 1.5, "transport": "shm"}
    assert BLOCKS.moved(json.dumps({"kv_transfer_params": {"pointsman_transfer": usual | told}}).encode()) is None
