"""Legs of vLLM's MooncakeConnector."""

from __future__ import annotations

import pytest

from pointsman.core.model.kv_shape import HandShake
from pointsman.edge.engines.handover.protocol import HandOverError, Order
from pointsman.edge.engines.handover.registry import handover_of
from support.handovers import COMPLETIONS, MESSAGES, NUMBER, asked_for, peer, read

MOONCAKE = handover_of(HandShake.VLLM_MOONCAKE)
P = peer("p", HandShake.VLLM_MOONCAKE, engine_ids=("e-0", "e-1"))
D = peer("d", HandShake.VLLM_MOONCAKE)
BODY = {"model": "m", "messages": MESSAGES, "stream": True, "max_tokens": 30, "min_tokens": 5, "stop": ["x"]}


def test_both_legs_know_the_transfer_by_one_id_and_go_at_once() -> None:
    assert MOONCAKE.order is Order.TOGETHER
    prefill = read(MOONCAKE.prefill(asked_for(BODY), P, D))
    decode = read(MOONCAKE.decode(asked_for(BODY), P, D, None))
    assert prefill == {
        "model": "m",
        "messages": MESSAGES,
        "stream": False,
        "max_tokens": 1,
        # An answer that ends by itself after its first token is not kept for the other engine.
        "ignore_eos": True,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": f"pointsman-{NUMBER}",
        },
    }
    assert decode == BODY | {
        "kv_transfer_params": {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "transfer_id": f"pointsman-{NUMBER}",
            "remote_engine_id": "e-0",
            "remote_bootstrap_addr": "http://p:8998",
        }
    }


@pytest.mark.parametrize(
    ("url", "port", "address"),
    [
        ("http://10.0.0.7:8000", None, "http://10.0.0.7:8998"),
        ("https://p.example:443", 9001, "http://p.example:9001"),
        ("http://[fd00::1]:8000", 9001, "http://[fd00::1]:9001"),
    ],
)
def test_the_bootstrap_server_is_at_the_engines_host_with_a_scheme(url: str, port: int | None, address: str) -> None:
    prefill = peer("p", HandShake.VLLM_MOONCAKE, url, engine_ids=("e",), port=port)
    leg = read(MOONCAKE.decode(asked_for({"model": "m", "prompt": "x"}, COMPLETIONS), prefill, D, None))
    assert leg["kv_transfer_params"]["remote_bootstrap_addr"] == address


def test_an_engine_whose_id_is_not_known_is_named() -> None:
    with pytest.raises(HandOverError, match=r"p/0: its engine id is not known; its bootstrap server \(port 8998\)"):
        MOONCAKE.decode(asked_for(BODY), peer("p", HandShake.VLLM_MOONCAKE), D, None)
