from __future__ import annotations

import pytest

from pointsman.edge.engines.facts import KvEventSource
from pointsman.edge.engines.http import EngineCallError, EngineHttp
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.vllm import VllmAdapter

ADAPTER = VllmAdapter()


async def test_identify(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert (facts.kind, facts.version, facts.models, facts.ranks) == ("vllm", "0.32.0", ("m",), (0,))
    assert (facts.block_size_tokens, facts.kv_capacity_tokens, facts.max_context_tokens) == (32, 9600, 4096)
    can = facts.capabilities
    assert can.kv_events == (KvEventSource(0, "tcp://*:5557"),)
    assert (can.chat, can.responses, can.embeddings, can.tokenize) == (True, False, False, True)
    assert (can.stream_usage, can.cached_tokens, can.load) == (True, True, True)
    assert facts.describe() == (
        "vLLM 0.32.0, model m, 300 blocks of 32 tokens, context 4096, KV events on tcp://*:5557"
    )


async def test_read_load_takes_the_exact_series(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)

    readings = await ADAPTER.read_load(EngineHttp(session, engine.url))

    assert readings == (
        LoadReading(
            rank=0,
            running=3,
            waiting=2,
            kv_use=0.25,
            kv_capacity_tokens=9600,
            computed_tokens_total=70,
            cached_tokens_total=30,
            preemptions_total=4,
            started_s=1.7e9,
        ),
    )


async def test_data_parallel_ranks(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] = "".join(
        f'vllm:num_requests_running{{engine="{rank}"}} {rank}\nvllm:num_requests_waiting{{engine="{rank}"}} 0\n'
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="{100 + rank}"}} 1\n'
        for rank in range(3)
    )
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)
    readings = await ADAPTER.read_load(http)

    assert facts.ranks == (0, 1, 2)
    assert facts.capabilities.rank_header == "X-data-parallel-rank"
    assert "3 data-parallel ranks" in facts.describe()
    assert [(r.rank, r.running, r.kv_capacity_tokens) for r in readings] == [(0, 0, 1600), (1, 1, 1616), (2, 2, 1632)]


@pytest.mark.parametrize("blocks", ["9" * 15, "9" * 5000, "0", "-1"])
async def test_a_cache_beyond_reason_is_none(make_engine, session, vllm_answers, blocks):
    vllm_answers["/metrics"] = (
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\n'
    )
    http = EngineHttp(session, (await make_engine(vllm_answers)).url)
    assert (await ADAPTER.identify(http)).kv_capacity_tokens is None
    (reading,) = await ADAPTER.read_load(http)
    assert (reading.running, reading.kv_capacity_tokens) == (1, None)


async def test_old_names_and_unresolved_cache_config(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] = (
        "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\nvllm:gpu_cache_usage_perc 1.5\n"
        'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1\n'
    )
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)
    (reading,) = await ADAPTER.read_load(http)

    assert (facts.block_size_tokens, facts.kv_capacity_tokens) == (None, None)
    assert (reading.kv_use, reading.kv_capacity_tokens, reading.cached_tokens_total) == (1.0, None, None)


async def test_lora_adapters_are_models(make_engine, session, vllm_answers):
    vllm_answers["/v1/models"] = {
        "data": [{"id": "base", "owned_by": "vllm"}, {"id": "sql", "owned_by": "vllm", "parent": "base"}]
    }
    engine = await make_engine(vllm_answers)

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    assert (facts.models, facts.lora) == (("base", "sql"), ("sql",))
    assert "model base, LoRA sql" in facts.describe()


async def test_what_is_off_comes_with_how_to_switch_it_on(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] = ""
    vllm_answers["/kv_event_sources"] = {"0": {"enable_kv_cache_events": False, "publisher": "null"}}
    vllm_answers["/v1/completions"] = {"usage": {"prompt_tokens_details": None}}
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert facts.capabilities.load is False
    assert facts.capabilities.kv_events == ()
    assert facts.capabilities.cached_tokens is False
    text = facts.describe()
    for flag in ("--disable-log-stats", "--kv-events-config", "--enable-prompt-tokens-details"):
        assert flag in text


async def test_no_event_source_at_all_is_off(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers | {"/kv_event_sources": {}})

    assert (await ADAPTER.identify(EngineHttp(session, engine.url))).capabilities.kv_events == ()


async def test_an_older_release_without_event_route_is_unknown_not_off(make_engine, session, vllm_answers):
    del vllm_answers["/kv_event_sources"], vllm_answers["/openapi.json"]
    engine = await make_engine(vllm_answers)

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    assert facts.capabilities.kv_events is None
    assert facts.capabilities.chat is None


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ("vllm:num_requests_running NaN\nvllm:num_requests_running{engine=", "Prometheus"),
        ("vllm:num_requests_running 1\n", "num_requests_waiting"),
        ("vllm:num_requests_running -1\nvllm:num_requests_waiting 0\n", "num_requests_running"),
        (500, "answered 500"),
    ],
)
async def test_bad_metrics_are_unknown_load(make_engine, session, vllm_answers, metrics, words):
    engine = await make_engine(vllm_answers | {"/metrics": metrics})

    with pytest.raises(EngineCallError, match=words):
        await ADAPTER.read_load(EngineHttp(session, engine.url))


async def test_another_kind_with_a_version_is_not_vllm(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] = "trtllm_num_requests_running 1\n"
    vllm_answers["/v1/models"] = {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}
    engine = await make_engine(vllm_answers)

    assert await ADAPTER.identify(EngineHttp(session, engine.url)) is None


async def test_tokenize(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    assert await ADAPTER.tokenize(http, "m", "hi") == [7, 8]
    assert await ADAPTER.tokenize(http, "m", [{"role": "user", "content": "hi"}]) == [7, 8]
    assert [asked.body for asked in engine.asked] == [
        {"model": "m", "prompt": "hi"},
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    ]
    engine.answers["/tokenize"] = 404
    assert await ADAPTER.tokenize(http, "m", "hi") is None


async def test_adapters_that_run_are_those_of_the_latest_time_stamp(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] += (
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e9\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="x"} 1.8e9\n'
        'pointsman_sim_busy_ratio{engine="0"} 0.7\n'
    )
    engine = await make_engine(vllm_answers)

    (reading,) = await ADAPTER.read_load(EngineHttp(session, engine.url))

    assert reading.running_adapters == {"sql", "chat"}
    assert (reading.most_adapters, reading.gpu_use) == (4, 0.7)


async def test_no_adapter_runs_is_not_unknown(make_engine, session, vllm_answers):
    vllm_answers["/metrics"] += (
        'vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1\n'
    )
    engine = await make_engine(vllm_answers)

    (reading,) = await ADAPTER.read_load(EngineHttp(session, engine.url))

    assert (reading.running_adapters, reading.most_adapters, reading.gpu_use) == (frozenset(), None, None)
