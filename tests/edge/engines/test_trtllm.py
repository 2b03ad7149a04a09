from __future__ import annotations

import pytest

from pointsman.edge.engines.http import EngineCallError, EngineHttp
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.trtllm import TrtllmAdapter

ADAPTER = TrtllmAdapter()
METRICS = """\
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.4
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 200
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 64
trtllm_max_batch_size_static{engine_type="trtllm",model_name="m"} 128
"""


@pytest.fixture
def trtllm_answers() -> dict[str, object]:
    return {
        "/version": {"version": "1.3.0rc2"},
        "/v1/models": {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]},
        "/prometheus/metrics": METRICS,
        "/metrics": [{"iter": 1}],
        "/openapi.json": {"paths": {"/v1/chat/completions": {}, "/v1/completions": {}, "/v1/responses": {}}},
        "/v1/completions": {"usage": {"prompt_tokens_details": {"cached_tokens": 64}}},
    }


async def test_identify_and_load(make_engine, session, trtllm_answers):
    engine = await make_engine(trtllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert (facts.kind, facts.version, facts.max_batch) == ("trtllm", "1.3.0rc2", 128)
    assert (facts.block_size_tokens, facts.kv_capacity_tokens) == (64, 12800)
    assert facts.capabilities.cached_tokens is True
    assert facts.describe() == "TensorRT-LLM 1.3.0rc2, model m, 200 blocks of 64 tokens, up to 128 at once"
    assert await ADAPTER.read_load(http) == (
        LoadReading(rank=0, running=6, waiting=1, kv_use=0.4, kv_capacity_tokens=12800),
    )


async def test_without_metrics_it_is_known_by_its_models(make_engine, session, trtllm_answers):
    del trtllm_answers["/prometheus/metrics"]
    engine = await make_engine(trtllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)

    assert facts.capabilities.load is False
    assert "return_perf_metrics" in facts.describe()
    assert await ADAPTER.read_load(http) == ()
    assert await ADAPTER.tokenize(http, "m", "x") is None


async def test_metrics_before_the_first_iteration(make_engine, session, trtllm_answers):
    engine = await make_engine(trtllm_answers | {"/prometheus/metrics": "# HELP trtllm_request_success Done.\n"})
    http = EngineHttp(session, engine.url)

    assert (await ADAPTER.identify(http)).kv_capacity_tokens is None
    assert await ADAPTER.read_load(http) == ()


async def test_half_of_the_metrics_is_unknown_load(make_engine, session, trtllm_answers):
    engine = await make_engine(trtllm_answers | {"/prometheus/metrics": "trtllm_num_requests_running 1\n"})

    with pytest.raises(EngineCallError, match="waiting"):
        await ADAPTER.read_load(EngineHttp(session, engine.url))


async def test_vllm_is_not_it(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)

    assert await ADAPTER.identify(EngineHttp(session, engine.url)) is None
