"""How an engine passes KV on is found out by asking it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.core.model.worker import Role
from pointsman.edge.engines.facts import EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.kv_facts import with_kv
from pointsman.edge.engines.sglang import SglangAdapter
from pointsman.edge.engines.trtllm import TrtllmAdapter
from pointsman.edge.engines.vllm import VllmAdapter

VLLM_METRICS = """\
vllm:num_requests_running{engine="0"} 0
vllm:num_requests_waiting{engine="0"} 0
vllm:cache_config_info{block_size="32",num_gpu_blocks="300",cache_dtype="%s",engine="0"} 1
"""
NIXL_METRICS = 'vllm:nixl_xfer_time_seconds_count{engine="0"} 0\n'
NIXL = KvShape(
    HandShake.VLLM_NIXL, 32, "fp8_e4m3", model="org/m", version="0.32.0", transports=("nixl",), tensor_parallel=4
)
TOLD = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "tp_size": 4, "transfer_mode": "pull"}


def vllm_answers(*, nixl: bool = True, dtype: str = "fp8_e4m3", **more: object) -> dict[str, object]:
    return {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "root": "org/m", "max_model_len": 4096}]},
        "/metrics": VLLM_METRICS % dtype + (NIXL_METRICS if nixl else ""),
        "/openapi.json": {"paths": {"/v1/completions": {}, "/v1/chat/completions": {}}},
        "/v1/completions": {"kv_transfer_params": TOLD},
    } | more


async def told(http: EngineHttp, transport: str | None = None, before: EngineFacts | None = None) -> EngineFacts:
    facts = await VllmAdapter().identify(http)
    assert facts is not None
    return await with_kv(http, facts, transport, before)


async def test_a_vllm_with_nixl_is_known_by_its_metrics_and_says_the_rest_when_asked(make_engine, session):
    engine = await make_engine(vllm_answers())

    facts = await told(EngineHttp(session, engine.url))

    assert facts.kv == NIXL
    assert "passes KV on (vllm-nixl)" in facts.describe()
    (asked,) = [asked.body for asked in engine.asked if asked.path == "/v1/completions"]
    assert asked["max_tokens"] == 1
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert len(asked["prompt"]) == 33


async def test_a_vllm_without_a_connector_passes_nothing_on_and_is_not_asked(make_engine, session):
    engine = await make_engine(vllm_answers(nixl=False))

    assert (await told(EngineHttp(session, engine.url))).kv is None
    assert engine.count("/v1/completions") == 0


async def test_the_model_s_own_type_is_unknown(make_engine, session):
    engine = await make_engine(vllm_answers(dtype="auto"))

    facts = await told(EngineHttp(session, engine.url))

    assert facts.kv == replace(NIXL, dtype=None)


async def test_without_metrics_the_operator_s_word_is_tried_out(make_engine, session):
    engine = await make_engine(vllm_answers(nixl=False))

    facts = await told(EngineHttp(session, engine.url), "nixl")

    assert facts.kv == replace(NIXL, dtype=None)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [({"choices": []}, "hands nothing over"), ({"kv_transfer_params": TOLD | {"transfer_mode": "push"}}, "writes KV")],
)
async def test_one_that_hands_nothing_over_passes_nothing_on_and_says_why(make_engine, session, answer, hint):
    engine = await make_engine(vllm_answers() | {"/v1/completions": answer})
    http = EngineHttp(session, engine.url)

    facts = await told(http)
    again = await told(http, before=facts)

    assert facts.kv is None
    assert hint in facts.describe()
    assert again == facts
    assert engine.count("/v1/completions") == 1


async def test_a_probe_that_fails_leaves_what_the_metrics_said_with_a_line(make_engine, session, caplog):
    engine = await make_engine(vllm_answers() | {"/v1/completions": 500})

    facts = await told(EngineHttp(session, engine.url))

    assert facts.kv == replace(NIXL, tensor_parallel=None)
    assert "could not find out how it passes KV on" in caplog.text


async def test_an_engine_that_others_can_not_read_says_how_to_mend_it(make_engine, session):
    engine = await make_engine(vllm_answers())
    http = EngineHttp(session, engine.url)
    http.url = http.url.replace("127.0.0.1", "0.0.0.0")  # reaches it, and is not known as this host

    facts = await told(http)

    assert facts.kv == NIXL
    assert "VLLM_NIXL_SIDE_CHANNEL_HOST" in facts.describe()


async def test_it_is_not_asked_again_before_it_restarts(make_engine, session):
    engine = await make_engine(vllm_answers())
    http = EngineHttp(session, engine.url)

    facts = await told(http)
    again = await told(http, before=facts)

    assert again == facts
    assert engine.count("/v1/completions") == 1


async def test_one_of_which_nothing_was_known_is_asked_when_it_tells_more(make_engine, session):
    engine = await make_engine(vllm_answers(nixl=False))
    http = EngineHttp(session, engine.url)

    nothing = await told(http)
    engine.answers["/metrics"] = vllm_answers()["/metrics"]
    facts = await told(http, before=nothing)
    again = await told(http, before=facts)

    assert nothing.kv is None
    assert facts.kv == again.kv == NIXL
    assert engine.count("/v1/completions") == 1


async def test_a_word_that_can_not_be_true_is_said_once(make_engine, session, caplog):
    engine = await make_engine(vllm_answers(nixl=False))
    http = EngineHttp(session, engine.url)

    facts = await told(http, "tcp")
    await told(http, "tcp", facts)

    assert facts.kv is None
    assert caplog.text.count("it passes no KV on: cache_transport: tcp") == 1


async def test_the_ranks_of_a_mooncake_engine_are_named_by_its_bootstrap_server(make_engine, session, monkeypatch):
    bootstrap = await make_engine({"/query": {"0": {"engine_id": "a"}, "1": {"engine_id": "b"}}})
    monkeypatch.setattr("pointsman.edge.engines.handover.vllm_mooncake.BOOTSTRAP_PORT", bootstrap.port)
    engine = await make_engine(vllm_answers(nixl=False), key="sesame")

    facts = await told(EngineHttp(session, engine.url, api_key="sesame"), "mooncake")

    assert facts.kv is not None
    assert (facts.kv.handshake, facts.kv.engine_ids, facts.kv.gives) == (HandShake.VLLM_MOONCAKE, ("a", "b"), True)
    assert [asked.authorization for asked in bootstrap.asked] == [None], "a key is the engine's alone"


async def test_a_bootstrap_server_that_falls_silent_changes_nothing(make_engine, session, monkeypatch):
    bootstrap = await make_engine({"/query": {"0": {"engine_id": "a"}}})
    monkeypatch.setattr("pointsman.edge.engines.handover.vllm_mooncake.BOOTSTRAP_PORT", bootstrap.port)
    engine = await make_engine(vllm_answers(nixl=False))
    http = EngineHttp(session, engine.url)

    facts = await told(http, "mooncake")
    bootstrap.answers["/query"] = 500
    assert await told(http, "mooncake", facts) == facts
    bootstrap.answers["/query"] = {"0": {"engine_id": "after a restart"}}
    again = await told(http, "mooncake", facts)

    assert again.kv is not None
    assert again.kv.engine_ids == ("after a restart",)


@pytest.mark.parametrize("answer", [404, {}, {"1": {"engine_id": "b"}}, "<html>"])
async def test_one_without_a_bootstrap_server_only_takes(make_engine, session, monkeypatch, answer):
    bootstrap = await make_engine({"/query": answer})
    monkeypatch.setattr("pointsman.edge.engines.handover.vllm_mooncake.BOOTSTRAP_PORT", bootstrap.port)
    engine = await make_engine(vllm_answers(nixl=False))

    facts = await told(EngineHttp(session, engine.url), "mooncake")

    assert facts.kv is not None
    assert (facts.kv.gives, facts.kv.takes) == (False, True)


async def test_an_embedded_engine_tells_all_by_itself(make_engine, session, caplog):
    caplog.set_level(logging.INFO)
    info = {
        "kind": "pointsman-embedded",
        "fingerprint": "f00d",
        "block_size": 16,
        "dtype": "float32",
        "bytes_per_token": 1024,
        "transports": ["shm", "tcp"],
        "host_id": "h",
        "lease_s": 30,
        "holds_parts": True,
    }
    engine = await make_engine(vllm_answers(nixl=False) | {"/kv/info": info})

    facts = await told(EngineHttp(session, engine.url))

    assert facts.kv == KvShape(
        HandShake.BLOCKS,
        block_size_tokens=16,
        dtype="float32",
        tensor_parallel=1,
        model="f00d",
        bytes_per_token=1024,
        transports=("shm", "tcp"),
        parts=True,
    )


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_an_sglang_engine_of_one_mode_serves_halves_of_requests_only(make_engine, session, mode):
    info = {
        "version": "0.5.23",
        "served_model_name": "m",
        "page_size": 16,
        "model_path": "/somewhere/org/m/",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "tp_size": 2,
        "disaggregation_mode": mode,
        "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": 9001,
    }
    models = {"data": [{"id": "m", "owned_by": "sglang"}]}
    engine = await make_engine({"/server_info": info, "/v1/models": models})

    facts = await SglangAdapter().identify(EngineHttp(session, engine.url))

    assert facts is not None
    assert facts.role is Role(mode)
    assert facts.kv == KvShape(
        HandShake.SGLANG,
        block_size_tokens=16,
        dtype="bfloat16",
        tensor_parallel=2,
        model="m",
        version="0.5.23",
        transports=("mooncake",),
        gives=mode == "prefill",
        takes=mode == "decode",
        port=9001,
        alone=False,
    )


async def test_an_sglang_engine_of_no_mode_passes_nothing_on(make_engine, session):
    info = {"version": "0.5.23", "served_model_name": "m", "page_size": 16, "disaggregation_mode": "null"}
    engine = await make_engine({"/server_info": info, "/v1/models": {"data": [{"id": "m"}]}})

    facts = await SglangAdapter().identify(EngineHttp(session, engine.url))

    assert facts is not None
    assert (facts.kv, facts.role) == (None, None)


@pytest.mark.parametrize(
    ("info", "passes_on"),
    [
        ({"disaggregated_params": {"ctx_info_endpoint": ["tcp://h:1"]}}, True),
        ({"disaggregated_params": {}}, False),
        (404, False),
    ],
)
async def test_a_tensorrt_engine_passes_on_where_it_says_by_what(make_engine, session, info, passes_on):
    answers = {
        "/version": {"version": "1.3.0rc2"},
        "/v1/models": {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]},
        "/prometheus/metrics": "trtllm_num_requests_running 0\ntrtllm_kv_cache_tokens_per_block 64\n",
        "/server_info": info,
    }
    engine = await make_engine(answers)

    facts = await TrtllmAdapter().identify(EngineHttp(session, engine.url))

    assert facts is not None
    assert facts.kv == (KvShape(HandShake.TRTLLM, 64, version="1.3.0rc2") if passes_on else None)
