"""What operators say of how an engine passes KV on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.kv_override import kv_shape

NIXL = KvShape(HandShake.VLLM_NIXL, 16, transports=("nixl",), tensor_parallel=2)
BLOCKS = KvShape(HandShake.BLOCKS, 16, transports=("shm", "tcp"))


def facts(kind: str, kv: KvShape | None) -> EngineFacts:
    return EngineFacts(kind=kind, version="1", models=("m",), tokenizer="org/m", block_size_tokens=16, kv=kv)


@pytest.mark.parametrize("kv", [None, NIXL, BLOCKS])
def test_what_the_engine_tells_holds_where_nothing_is_said(kv: KvShape | None) -> None:
    assert kv_shape(facts("vllm", kv), None) == (kv, None)


@pytest.mark.parametrize(
    ("kind", "transport", "handshake"),
    [
        ("vllm", "nixl", HandShake.VLLM_NIXL),
        ("vllm", "mooncake", HandShake.VLLM_MOONCAKE),
        ("vllm", "shared-storage", HandShake.SHARED_STORAGE),
        ("openai", "shared-storage", HandShake.SHARED_STORAGE),
        ("trtllm", "nixl", HandShake.TRTLLM),
    ],
)
def test_what_can_not_be_seen_is_believed(kind: str, transport: str, handshake: HandShake) -> None:
    kv, complaint = kv_shape(facts(kind, None), transport)
    assert complaint is None
    assert kv is not None
    assert (kv.handshake, kv.transports, kv.block_size_tokens, kv.version) == (handshake, (transport,), 16, "1")


def test_what_the_engine_tells_is_narrowed_to_one_transport() -> None:
    assert kv_shape(facts("vllm", BLOCKS), "tcp") == (KvShape(HandShake.BLOCKS, 16, transports=("tcp",)), None)
    assert kv_shape(facts("vllm", NIXL), "nixl") == (NIXL, None)


def test_a_transport_that_other_engines_have_too_is_its_own_where_it_tells_it() -> None:
    told = replace(BLOCKS, transports=("shm", "nixl"), bytes_per_token=64, parts=True)
    assert kv_shape(facts("vllm", told), "nixl") == (replace(told, transports=("nixl",)), None)


def test_an_engine_of_halves_that_is_to_pass_nothing_on_still_serves_no_whole_requests() -> None:
    told = KvShape(HandShake.SGLANG, 16, transports=("mooncake",), takes=False, alone=False)
    shape, complaint = kv_shape(facts("sglang", told), "nixl")
    assert complaint == "cache_transport: nixl is none of its own: mooncake"
    assert shape == replace(told, gives=False)
    off = WorkerSource("a", "http://a:1", moves_kv=False)
    assert off.spec(facts("sglang", told), 0).kv == replace(told, gives=False)
    assert off.spec(facts("vllm", NIXL), 0).kv is None


def test_an_engine_with_two_connectors_is_used_by_the_one_that_is_named() -> None:
    kv, complaint = kv_shape(facts("vllm", NIXL), "shared-storage")
    assert complaint is None
    assert kv is not None
    assert kv.handshake is HandShake.SHARED_STORAGE


@pytest.mark.parametrize(
    ("kind", "kv", "transport", "says"),
    [
        ("vllm", BLOCKS, "rdma", "none of its own: shm, tcp"),
        ("vllm", BLOCKS, "nixl", "none of its own: shm, tcp"),
        ("vllm", BLOCKS, "shared-storage", "none of its own: shm, tcp"),
        ("vllm", None, "tcp", "vLLM was not started so"),
        ("sglang", None, "nixl", "SGLang was not started so"),
        ("llamacpp", None, "nixl", "llama.cpp was not started so"),
    ],
)
def test_what_can_not_be_is_named_and_passes_nothing_on(
    kind: str, kv: KvShape | None, transport: str, says: str
) -> None:
    shape, complaint = kv_shape(facts(kind, kv), transport)
    assert shape is None
    assert complaint is not None
    assert says in complaint
