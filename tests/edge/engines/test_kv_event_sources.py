from __future__ import annotations

import json

import pytest

from pointsman.edge.engines.facts import KvEventSource
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.sglang import SglangAdapter
from pointsman.edge.engines.vllm import VllmAdapter

ON = {"enable_kv_cache_events": True, "publisher": "zmq"}


@pytest.mark.parametrize(
    ("told", "sources"),
    [
        (
            {"1": {**ON, "endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:6558", "topic": "kv"}, "x": {**ON}},
            (KvEventSource(1, "tcp://*:5558", "tcp://*:6558", "kv"),),
        ),
        (
            [
                {"data_parallel_rank": 1, "endpoint": "tcp://*:2", "replay_endpoint": "tcp://*:3", "topic": None},
                {"data_parallel_rank": 0, "endpoint": "tcp://*:1"},
            ],
            (KvEventSource(1, "tcp://*:2", "tcp://*:3"), KvEventSource(0, "tcp://*:1")),
        ),
        ([None, {"endpoint": "tcp://*:2"}], (KvEventSource(1, "tcp://*:2"),)),
        ([{"data_parallel_rank": 0, "publisher": "null", "endpoint": "tcp://*:1"}], ()),
        ({"0": {**ON, "publisher": None, "endpoint": "tcp://*:1"}}, ()),
        ([], ()),
        ({}, ()),
    ],
)
async def test_vllm_tells_them_by_rank_or_in_a_list(make_engine, session, vllm_answers, told, sources):
    vllm_answers["/kv_event_sources"] = told
    engine = await make_engine(vllm_answers)
    facts = await VllmAdapter().identify(EngineHttp(session, engine.url))
    assert facts.capabilities.kv_events == sources


@pytest.mark.parametrize(
    ("endpoint", "bind", "connects"),
    [
        ("tcp://*:5557", None, False),
        ("tcp://0.0.0.0:5557", None, False),
        ("ipc:///run/kv", None, False),
        ("tcp://10.0.0.1:5557", None, True),
        ("tcp://127.0.0.1:5557", True, False),
        ("tcp://*:5557", False, True),
    ],
)
async def test_sglang_listens_or_connects(make_engine, session, endpoint, bind, connects):
    config = {"publisher": "zmq", "endpoint": endpoint, "bind": bind}
    info = {"served_model_name": "m", "page_size": 1, "kv_events_config": json.dumps(config)}
    info["kv_events"] = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "block_size": 64}
    models = {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]}
    engine = await make_engine({"/server_info": info, "/v1/models": models})
    facts = await SglangAdapter().identify(EngineHttp(session, engine.url))
    assert facts.capabilities.kv_events == (KvEventSource(0, endpoint, connects=connects),)
    assert facts.block_size_tokens == 64
