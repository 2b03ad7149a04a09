"""What holds for every hand-shake: all that it does not own of a body stays as the client wrote it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.fields import HAND_SHAKE_FIELDS
from pointsman.edge.engines.handover.protocol import HandOver, LegRequest, Order
from pointsman.edge.engines.handover.registry import HAND_OVERS
from pointsman.edge.wire.members import members
from support.handovers import COMPLETIONS, asked_for, peer

OWNED = {
    *HAND_SHAKE_FIELDS,
    *("stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids"),
    *("ignore_eos", "cache_prompt", "prompt", "model", "prompt_token_ids"),
}
"""What a leg may change."""
KV_PARAMS = {
    "do_remote_prefill": True,
    "remote_block_ids": [[1]],
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_host": "h",
    "remote_port": 1,
}
CONTEXT = {"ctx_request_id": 2**62 + 1, "disagg_request_id": 2**61 + 1}
ANSWER = json.dumps(
    {
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "length", "disaggregated_params": CONTEXT}],
        "prompt_token_ids": [1],
        "kv_transfer_params": KV_PARAMS,
    }
).encode()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
WRITTEN = st.sampled_from(["1.0e-00", "18446744073709551617", " null", '[ 1,  2.50,{"a" :1}]', "-0.0", "true"])
EXTRA = st.dictionaries(TEXT.map(lambda name: "x" + name), WRITTEN, max_size=5)
EACH = pytest.mark.parametrize("handover", HAND_OVERS.values(), ids=lambda each: each.handshake)


def legs(handover: HandOver, body: bytes) -> list[bytes]:
    kind = handover.handshake
    prefill, decode = peer("p", kind, engine_ids=("e",), slots=2), peer("d", kind, slots=2)
    asked = asked_for(body, COMPLETIONS)
    assert handover.refusal(asked) is None
    answer = None if handover.order is Order.TOGETHER else ANSWER
    made = [handover.prefill(asked, prefill, decode), handover.decode(asked, prefill, decode, answer)]
    assert all(isinstance(leg, LegRequest) for leg in made)
    return [leg.body for leg in made if isinstance(leg, LegRequest)]


@EACH
@settings(max_examples=25)
@given(EXTRA, st.booleans())
def test_what_it_does_not_own_keeps_every_byte(handover: HandOver, extra: dict[str, str], streamed: bool) -> None:
    parts = {"model": '"m"', "prompt": '"x"', "stream": json.dumps(streamed), "min_tokens": "3", **extra}
    body = ("{" + ",".join(f"{json.dumps(name)} : {value}" for name, value in parts.items()) + "}").encode()
    prefill, decode = (members(leg) for leg in legs(handover, body))
    for made in (prefill, decode):
        kept = {name: bytes(value).decode() for name, value in made.items() if name not in OWNED}
        assert kept == {name: value.strip() for name, value in extra.items()}
        assert bytes(made["model"]) == b'"m"'
    assert msgspec.json.decode(bytes(prefill["stream"])) is False
    assert msgspec.json.decode(bytes(decode["stream"])) is streamed


@EACH
def test_a_member_that_comes_twice_counts_once_and_as_the_last(handover: HandOver) -> None:
    body = b'{"model":"m","prompt":"x","stream":false,"stream":true,"s\\u0074ream":true,"seed":1,"seed":2}'
    for leg in legs(handover, body):
        read: list[tuple[str, Any]] = json.loads(leg, object_pairs_hook=list)
        names = [name for name, _ in read]
        if leg != body:  # it goes as it came where nothing has to be said
            assert len(set(names)) == len(names)
        assert dict(read)["seed"] == 2


def test_all_that_clients_must_not_set_is_looked_for() -> None:
    assert {HandShake.SGLANG, HandShake.TRTLLM} <= set(HAND_OVERS)
    for name in HAND_SHAKE_FIELDS:
        asked = asked_for({"model": "m", "prompt": "x", name: 1}, COMPLETIONS)
        for handover in HAND_OVERS.values():
            refusal = handover.refusal(asked)
            assert refusal is not None
            assert name in refusal
