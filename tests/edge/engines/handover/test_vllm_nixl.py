"""Legs of vLLM's NixlConnector."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import HandOverError, LegRequest, Order
from pointsman.edge.engines.handover.registry import handover_of
from support.handovers import COMPLETIONS, MESSAGES, asked_for, peer, read

NIXL = handover_of(HandShake.VLLM_NIXL)
P, D = peer("p", HandShake.VLLM_NIXL), peer("d", HandShake.VLLM_NIXL)
COMPUTE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
NEW = (
    b'{"do_remote_prefill": true,"do_remote_decode":false,"remote_block_ids":[[1,2,3]],"remote_engine_id":"e",'
    b'"remote_request_id":"chatcmpl-req-1-9007199254740993","remote_host":"localhost","remote_port":5600,"tp_size":1,'
    b'"dcp_size":1,"pp_size":1,"remote_num_tokens":90,"remote_blocks_expiry_time":null,"transfer_mode":"pull",'
    b'"of_a_release_to_come":18446744073709551617}'
)
OLD = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[1,2,3],"remote_engine_id":"e",'
    b'"remote_host":"10.0.0.1","remote_port":5600}'
)


def answer_with(params: bytes) -> bytes:
    return b'{"id":"chatcmpl-1","choices":[{"finish_reason":"length"}],"kv_transfer_params":' + params + b"}"


def changed(**fields: Any) -> bytes:
    return answer_with(json.dumps(json.loads(NEW) | fields).encode())


def test_the_prompt_comes_first() -> None:
    assert NIXL.order is Order.PREFILL_FIRST
    assert NIXL.lease_s == 30.0


def test_the_prefill_leg_computes_the_prompt_and_one_token_for_another_engine() -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 300,
        "max_completion_tokens": 200,
        "min_tokens": 20,
        "temperature": 0.5,
    }
    assert read(NIXL.prefill(asked_for(body), P, D)) == {
        "model": "m",
        "messages": MESSAGES,
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "temperature": 0.5,
        "kv_transfer_params": COMPUTE,
    }


def test_a_limit_that_the_client_did_not_name_is_not_named_for_it() -> None:
    leg = read(NIXL.prefill(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), P, D))
    assert "max_completion_tokens" not in leg
    assert leg["max_tokens"] == 1


@pytest.mark.parametrize("params", [NEW, OLD], ids=["0.29+", "older"])
def test_the_decode_leg_is_the_clients_body_with_the_object_unchanged(params: bytes) -> None:
    body = b'{"model":"m", "messages":[{"role":"user","content":"x"}],"min_tokens":3,"seed":18446744073709551617}'
    leg = NIXL.decode(asked_for(body), P, D, answer_with(params))
    assert isinstance(leg, LegRequest)
    assert params in leg.body
    assert b'"seed":18446744073709551617' in leg.body
    assert json.loads(leg.body) == json.loads(body) | {"kv_transfer_params": json.loads(params)}
    assert (leg.path, leg.headers, leg.method) == (None, (), "POST")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "no answer"),
        (b"<html>", "not as documented"),
        (b"[]", "not as documented"),
        (b'{"choices":[]}', "without a KV connector"),
        (answer_with(b"null"), "without a KV connector"),
        (answer_with(b'"x"'), "not as documented"),
        (changed(do_remote_prefill=False), "do_remote_prefill"),
        (changed(remote_block_ids=[[]]), "lack remote_block_ids"),
        (changed(remote_block_ids=None), "lack remote_block_ids"),
        (changed(remote_engine_id=None, remote_port=None), "lack remote_engine_id, remote_port"),
        (changed(remote_port="x"), "not as documented"),
        (changed(transfer_mode="push"), "transfer_mode 'push'"),
        (answer_with(b"[" * 100_000), "not as documented"),
    ],
)
def test_an_answer_that_can_not_be_used_says_why(answer: bytes | None, says: str) -> None:
    with pytest.raises(HandOverError, match=says):
        NIXL.decode(asked_for({"model": "m", "messages": MESSAGES}), P, D, answer)


@pytest.mark.parametrize(
    ("path", "extra", "says"),
    [
        (COMPLETIONS, {"n": 2}, "n asks for more"),
        (COMPLETIONS, {"best_of": 3}, "best_of asks for more"),
        (COMPLETIONS, {"use_beam_search": True}, "beam search"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "several prompts"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "several prompts"),
        (COMPLETIONS, {"prompt_embeds": "AAAA"}, "embeddings"),
        (COMPLETIONS, {"echo": True, "logprobs": 1}, "logprobs of the prompt"),
        (COMPLETIONS, {"echo": True, "logprobs": 0}, "logprobs of the prompt"),
        (COMPLETIONS, {"prompt_logprobs": 0}, "logprobs of the prompt"),
        (COMPLETIONS, {"kv_transfer_params": {}}, "kv_transfer_params itself"),
        (COMPLETIONS, {"bootstrap_room": 1}, "bootstrap_room itself"),
        (COMPLETIONS, {"disaggregated_params": {"a": 1}}, "disaggregated_params itself"),
        ("/v1/embeddings", {}, "no prefill and decode"),
        ("/v1/responses", {}, "no prefill and decode"),
    ],
)
def test_what_can_not_be_split_is_refused_with_the_reason(path: str, extra: dict[str, Any], says: str) -> None:
    refusal = NIXL.refusal(asked_for({"model": "m", "prompt": "x"} | extra, path))
    assert refusal is not None
    assert says in refusal


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    body = b'{"model":"m","prompt":"x","deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    refusal = NIXL.refusal(asked_for(body, COMPLETIONS))
    assert refusal is not None
    assert "nested too deeply" in refusal


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"n": 1, "best_of": 1},
        {"n": None, "kv_transfer_params": None},
        {"prompt": ["a"]},
        {"prompt": [1, 2, 3]},
        {"prompt": [[1, 2]]},
        {"echo": True},
        {"logprobs": 2},
        {"use_beam_search": False},
    ],
)
def test_one_answer_to_one_prompt_can_be_split(extra: dict[str, Any]) -> None:
    assert NIXL.refusal(asked_for({"model": "m", "prompt": "x"} | extra, COMPLETIONS)) is None


def test_nothing_is_held_and_nothing_told() -> None:
    asked = asked_for({"model": "m", "messages": MESSAGES})
    assert NIXL.hold(asked, P, 64) is None
    assert NIXL.moved(answer_with(NEW)) is None


def test_the_decode_side_frees_what_nobody_will_fetch_when_it_refuses_a_request_with_it() -> None:
    answer = b'{"model":"m\\u00e9","choices":[],"kv_transfer_params":' + NEW + b"}"
    leg = NIXL.release(P, answer)
    assert isinstance(leg, LegRequest)
    assert (leg.path, leg.at_decode, leg.refused) == (COMPLETIONS, True, True)
    assert NEW in leg.body
    assert read(leg) == {
        "model": "m\u00e9",
        "prompt": [0],
        "max_tokens": 1,
        "logprobs": 1_000_000,
        "kv_transfer_params": json.loads(NEW),
    }


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"model":"m"}', b'{"kv_transfer_params":{"a":1}}'])
def test_where_nothing_is_kept_nothing_is_freed(answer: bytes) -> None:
    assert NIXL.release(P, answer) is None
