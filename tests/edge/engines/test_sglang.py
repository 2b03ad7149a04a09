from __future__ import annotations

import pytest

from pointsman.edge.engines.facts import KvEventSource
from pointsman.edge.engines.http import EngineCallError, EngineHttp
from pointsman.edge.engines.load import LoadReading
from pointsman.edge.engines.sglang import SglangAdapter

ADAPTER = SglangAdapter()


def rank_load(rank: int, running: int = 0, waiting: int = 0) -> dict[str, object]:
    return {
        "dp_rank": rank,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "token_usage": 0.5,
        "max_total_num_tokens": 8192,
        "total_prefill_uncached_tokens": 54,
    }


@pytest.fixture
def sglang_answers() -> dict[str, object]:
    return {
        "/server_info": {
            "version": "0.5.23",
            "served_model_name": "m",
            "page_size": 16,
            "dp_size": 1,
            "context_length": 4096,
            "max_total_num_tokens": 8192,
            "enable_cache_report": True,
            "api_key": "sesame",
            "kv_events_config": None,
            "internal_states": [{"effective_max_running_requests_per_dp": 2048}],
        },
        "/v1/models": {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 4096}]},
        "/openapi.json": {"paths": {"/v1/chat/completions": {}, "/v1/tokenize": {}}},
        "/v1/loads": {"loads": [rank_load(0, running=2, waiting=1)]},
        "/tokenize": {"tokens": [1, 2, 3]},
    }


async def test_identify(make_engine, session, sglang_answers):
    engine = await make_engine(sglang_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)

    assert facts == await ADAPTER.probe(http, facts)
    assert (facts.kind, facts.version, facts.models, facts.max_batch) == ("sglang", "0.5.23", ("m",), 2048)
    assert (facts.block_size_tokens, facts.kv_capacity_tokens, facts.max_context_tokens) == (16, 8192, 4096)
    assert (facts.capabilities.cached_tokens, facts.capabilities.tokenize) == (True, True)
    text = facts.describe()
    assert text.startswith("SGLang 0.5.23, model m, 512 blocks of 16 tokens")
    assert "KV events off: start it with --kv-events-config" in text
    assert "sesame" not in repr(facts)


async def test_older_route_and_switched_off_report(make_engine, session, sglang_answers):
    info = sglang_answers.pop("/server_info") | {"enable_cache_report": False}
    engine = await make_engine(sglang_answers | {"/get_server_info": info})

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    assert facts.capabilities.cached_tokens is False
    assert "cached_tokens off: start it with --enable-cache-report" in facts.describe()


async def test_ranks_and_where_they_publish(make_engine, session, sglang_answers):
    sglang_answers["/server_info"] |= {
        "dp_size": 2,
        "kv_events_config": '{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv"}',
    }
    sglang_answers["/v1/loads"] = {"loads": [rank_load(1, running=5), rank_load(0)]}
    engine = await make_engine(sglang_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)
    readings = await ADAPTER.read_load(http)

    assert facts.ranks == (0, 1)
    assert facts.capabilities.kv_events == (
        KvEventSource(0, "tcp://*:5557", "tcp://*:5657", "kv"),
        KvEventSource(1, "tcp://*:5558", "tcp://*:5658", "kv"),
    )
    assert [(r.rank, r.running) for r in readings] == [(0, 0), (1, 5)]


@pytest.mark.parametrize(("config", "events"), [("{}", ()), ("not json", None), ('{"publisher":"null"}', ())])
async def test_event_settings_that_give_no_events(make_engine, session, sglang_answers, config, events):
    sglang_answers["/server_info"] |= {"kv_events_config": config}
    engine = await make_engine(sglang_answers)

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    assert facts.capabilities.kv_events == events


async def test_load_from_the_load_route(make_engine, session, sglang_answers):
    engine = await make_engine(sglang_answers)

    assert await ADAPTER.read_load(EngineHttp(session, engine.url)) == (
        LoadReading(rank=0, running=2, waiting=1, kv_use=0.5, kv_capacity_tokens=8192, computed_tokens_total=54),
    )


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
async def test_load_from_metrics_of_both_spellings(make_engine, session, sglang_answers, prefix):
    del sglang_answers["/v1/loads"]
    labels = '{dp_rank="1",tp_rank="0"}'
    sglang_answers["/metrics"] = "".join(
        f"{prefix}{name}{labels} {value}\n"
        for name, value in [
            ("num_running_reqs", 4),
            ("num_queue_reqs", 1),
            ("token_usage", 0.75),
            ("max_total_num_tokens", 100),
        ]
    )
    engine = await make_engine(sglang_answers)

    assert await ADAPTER.read_load(EngineHttp(session, engine.url)) == (
        LoadReading(rank=1, running=4, waiting=1, kv_use=0.75, kv_capacity_tokens=100),
    )


async def test_without_either_the_load_is_unknown(make_engine, session, sglang_answers):
    del sglang_answers["/v1/loads"]
    engine = await make_engine(sglang_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)

    assert await ADAPTER.read_load(http) == ()
    assert facts.capabilities.load is False
    assert "--enable-metrics" in facts.describe()


async def test_negative_load_is_an_error(make_engine, session, sglang_answers):
    engine = await make_engine(sglang_answers | {"/v1/loads": {"loads": [rank_load(0, running=-3)]}})

    with pytest.raises(EngineCallError, match="num_running_reqs"):
        await ADAPTER.read_load(EngineHttp(session, engine.url))


@pytest.mark.parametrize("info", [{"version": "1.3"}, {"served_model_name": "m"}, "<html>", 404, 401])
async def test_what_is_not_sglang(make_engine, session, sglang_answers, info):
    engine = await make_engine(sglang_answers | {"/server_info": info})

    assert await ADAPTER.identify(EngineHttp(session, engine.url)) is None


async def test_tokenize(make_engine, session, sglang_answers):
    engine = await make_engine(sglang_answers)
    http = EngineHttp(session, engine.url)

    assert await ADAPTER.tokenize(http, "m", "abc") == [1, 2, 3]
    assert await ADAPTER.tokenize(http, "m", [{"role": "user", "content": "abc"}]) == [1, 2, 3]
    assert "messages" in engine.asked[-1].body


async def test_adapters_are_called_by_their_base_too(make_engine, session, sglang_answers):
    """A bare adapter's name would be answered by the base model."""
    sglang_answers["/v1/models"] = {"data": [{"id": "m"}, {"id": "sql", "parent": "m"}]}
    engine = await make_engine(sglang_answers)

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    assert (facts.models, facts.lora) == (("m", "m:sql"), ("m:sql",))
