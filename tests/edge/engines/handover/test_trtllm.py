"""Legs of TensorRT-LLM."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import Complete, HandOverError, LegRequest, Order
from pointsman.edge.engines.handover.registry import handover_of
from support.handovers import COMPLETIONS, MESSAGES, NUMBER, asked_for, peer, read

TRT = handover_of(HandShake.TRTLLM)
P, D = peer("p", HandShake.TRTLLM), peer("d", HandShake.TRTLLM, version="1.3.0rc2")
BIG = 2**62 + 1
PARAMS = {
    "request_type": "context_only",
    "first_gen_tokens": [5],
    "ctx_request_id": BIG,
    "disagg_request_id": NUMBER,
    "encoded_opaque_state": "AAAA",
    "draft_tokens": None,
}
USAGE = {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}


def answer(finish: str = "length", params: object = PARAMS, **more: Any) -> bytes:
    choice = {"index": 0, "text": "a", "finish_reason": finish, "disaggregated_params": params}
    return json.dumps({"choices": [choice], "prompt_token_ids": [1, 2, 3], "usage": USAGE} | more).encode()


def test_the_context_leg_is_the_clients_request_with_an_id() -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
    }
    assert TRT.order is Order.PREFILL_FIRST
    assert read(TRT.prefill(asked_for(body), P, D)) == {
        "model": "m",
        "messages": MESSAGES,
        "stream": False,
        "max_tokens": 9,
        "disaggregated_params": {"request_type": "context_only", "disagg_request_id": NUMBER},
    }


@pytest.mark.parametrize("finish", ["length", "not_finished"])
@pytest.mark.parametrize(
    ("path", "asks", "ids"),
    [
        (COMPLETIONS, {"prompt": "abc"}, {"prompt": [1, 2, 3]}),
        ("/v1/chat/completions", {"messages": MESSAGES}, {"messages": MESSAGES, "prompt_token_ids": [1, 2, 3]}),
    ],
)
def test_the_generation_leg_gets_the_object_and_the_token_ids(
    finish: str, path: str, asks: dict[str, Any], ids: dict[str, Any]
) -> None:
    leg = TRT.decode(asked_for({"model": "m", "stream": True, **asks}, path), P, D, answer(finish))
    assert read(leg) == {
        "model": "m",
        "stream": True,
        **ids,
        "disaggregated_params": PARAMS | {"request_type": "generation_only", "ctx_usage": USAGE},
    }


def test_ids_beyond_what_doubles_hold_keep_every_digit() -> None:
    leg = TRT.decode(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), P, D, answer())
    assert isinstance(leg, LegRequest)
    assert str(BIG).encode() in leg.body


@pytest.mark.parametrize(("version", "known"), [("1.2.1", False), ("0.21.0", False), ("1.3.0", True), (None, True)])
def test_an_older_engine_is_not_told_the_usage_that_its_schema_refuses(version: str | None, known: bool) -> None:
    decode = peer("d", HandShake.TRTLLM, version=version)
    leg = read(TRT.decode(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), P, decode, answer()))
    assert ("ctx_usage" in leg["disaggregated_params"]) is known


def test_an_answer_that_ended_by_itself_is_the_clients_without_what_engines_tell_each_other() -> None:
    told = TRT.decode(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), P, D, answer("stop"))
    assert isinstance(told, Complete)
    assert told.answer is not None
    assert json.loads(told.answer) == {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}], "usage": USAGE}


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (None, "no answer"),
        (b"<html>", "not as documented"),
        (b"[" * 100_000, "not as documented"),
        (b'{"choices":[]}', "0 choices, expected one"),
        (b'{"choices":[{"finish_reason":"length"},{"finish_reason":"length"}]}', "2 choices, expected one"),
        (answer(params=None), "cache_transceiver_config"),
        (answer(params={"disagg_request_id": 1}), "lack ctx_request_id$"),
        (answer(params={}), "lack ctx_request_id and disagg_request_id"),
        (answer(params={"ctx_request_id": "x"}), "not as documented"),
        (answer(params=[]), "not as documented"),
    ],
)
def test_an_answer_that_can_not_be_used_says_why(said: bytes | None, says: str) -> None:
    with pytest.raises(HandOverError, match=says):
        TRT.decode(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), P, D, said)
