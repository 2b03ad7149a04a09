from __future__ import annotations

import pytest

from pointsman.core.model.errors import ConfigError, EngineError
from pointsman.edge.engines.detect import ADAPTERS, adapter_of, detect
from pointsman.edge.engines.http import EngineCallError, EngineHttp, Trouble

MODELS = {"data": [{"id": "m"}]}
BY_KIND: dict[str, dict[str, object]] = {
    "sglang": {"/server_info": {"served_model_name": "m", "page_size": 16}, "/v1/models": MODELS},
    "trtllm": {"/version": {"version": "1"}, "/v1/models": {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]}},
    "llamacpp": {
        "/props": {"total_slots": 1, "default_generation_settings": {"n_ctx": 10}},
        "/v1/models": MODELS,
    },
    "openai": {"/v1/models": MODELS},
}


async def test_vllm_is_found(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)

    adapter, facts = await detect(EngineHttp(session, engine.url))

    assert (adapter.kind, facts.kind) == ("vllm", "vllm")


@pytest.mark.parametrize("kind", BY_KIND)
async def test_each_kind_is_found_by_its_own_routes(make_engine, session, kind):
    engine = await make_engine(BY_KIND[kind])

    adapter, facts = await detect(EngineHttp(session, engine.url))

    assert (adapter.kind, facts.kind, facts.models) == (kind, kind, ("m",))


async def test_a_gateway_that_guards_unknown_paths(make_engine, session):
    guarded = dict.fromkeys(("/version", "/server_info", "/get_server_info", "/props", "/openapi.json"), 403)
    engine = await make_engine({**guarded, "/v1/models": MODELS})

    adapter, facts = await detect(EngineHttp(session, engine.url, api_key="k"))

    assert adapter.kind == "openai"
    assert facts.describe() == "OpenAI-compatible server, model m; its load is unknown"


@pytest.mark.parametrize(
    ("answers", "trouble"),
    [
        ({}, Trouble.NOT_THERE),
        (dict.fromkeys(("/version", "/server_info", "/props", "/v1/models"), "<html>hello</html>"), Trouble.MALFORMED),
        ({"/version": 503}, Trouble.NOT_READY),
        ({"/version": "hang"}, Trouble.TIMED_OUT),
        ({"/v1/models": {"data": None}}, Trouble.MALFORMED),
        ({"/v1/models": {"data": [{"id": None}]}}, Trouble.MALFORMED),
        ({"/v1/models": "x" * 5000}, Trouble.MALFORMED),
    ],
)
async def test_what_is_no_engine(make_engine, session, answers, trouble):
    engine = await make_engine(answers)
    limit_s = 0.2 if trouble is Trouble.TIMED_OUT else 30.0
    http = EngineHttp(session, engine.url, timeout_s=limit_s, max_body_bytes=4000)

    with pytest.raises(EngineCallError) as caught:
        await detect(http)

    assert caught.value.trouble is trouble


async def test_an_engine_that_wants_a_key(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers, key="sesame")

    with pytest.raises(EngineCallError, match=r"api_key_env \(or api_key\)"):
        await detect(EngineHttp(session, engine.url))

    adapter, _ = await detect(EngineHttp(session, engine.url, api_key="sesame"))
    assert adapter.kind == "vllm"
    accepted = [asked for asked in engine.asked if asked.authorization]
    assert all(asked.authorization == "Bearer sesame" for asked in accepted)


async def test_a_kind_that_was_said_is_the_only_one_asked(make_engine, session, vllm_answers):
    engine = await make_engine(vllm_answers)
    http = EngineHttp(session, engine.url)

    adapter, _ = await detect(http, "openai")
    assert adapter.kind == "openai"
    with pytest.raises(EngineError, match="does not answer as SGLang does"):
        await detect(http, "sglang")


async def test_an_empty_model_list_is_told_as_it_is(make_engine, session):
    engine = await make_engine({"/v1/models": {"data": []}})

    _, facts = await detect(EngineHttp(session, engine.url))

    assert facts.models == ()
    assert "models none" in facts.describe()


def test_unknown_kind_names_the_known_ones():
    with pytest.raises(ConfigError, match="vllm, sglang, trtllm, llamacpp, openai"):
        adapter_of("tgi")
    assert adapter_of("vllm") is ADAPTERS["vllm"]
