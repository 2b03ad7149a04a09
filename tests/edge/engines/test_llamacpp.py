from __future__ import annotations

import pytest

from pointsman.core.model.kv_shape import HandShake, KvShape
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.kv_override import kv_shape
from pointsman.edge.engines.llamacpp import LlamaCppAdapter
from pointsman.edge.engines.load import LoadReading

ADAPTER = LlamaCppAdapter()
METRICS = """\
llamacpp:prompt_tokens_total 30
llamacpp:prompt_tokens_cached_total 12
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


@pytest.fixture
def llamacpp_answers() -> dict[str, object]:
    return {
        "/props": {
            "total_slots": 4,
            "default_generation_settings": {"n_ctx": 2048, "params": {}},
            "build_info": "b7000-abc",
            "chat_template": "{{ x }}",
        },
        "/v1/models": {"data": [{"id": "small", "aliases": ["small", "tiny"], "owned_by": "llamacpp"}]},
        "/metrics": METRICS,
        "/slots": [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}],
        "/tokenize": {"tokens": [4, 5]},
        "/apply-template": {"prompt": "<user>hi"},
        "/v1/completions": {"usage": {"prompt_tokens_details": {"cached_tokens": 0}}},
    }


async def test_identify(make_engine, session, llamacpp_answers):
    engine = await make_engine(llamacpp_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert (facts.kind, facts.version, facts.models) == ("llamacpp", "b7000-abc", ("small", "tiny"))
    assert (facts.max_batch, facts.max_context_tokens, facts.kv_capacity_tokens) == (4, 2048, 8192)
    assert facts.capabilities.cached_tokens is True
    assert facts.capabilities.kv_events == ()
    assert facts.describe() == (
        "llama.cpp b7000-abc, models small tiny, KV cache of 8192 tokens, context 2048, up to 4 at once"
    )


async def test_load_from_metrics(make_engine, session, llamacpp_answers):
    engine = await make_engine(llamacpp_answers)

    assert await ADAPTER.read_load(EngineHttp(session, engine.url)) == (
        LoadReading(rank=0, running=2, waiting=1, computed_tokens_total=30, cached_tokens_total=12),
    )


async def test_without_metrics_slots_are_counted(make_engine, session, llamacpp_answers):
    llamacpp_answers["/metrics"] = 501
    engine = await make_engine(llamacpp_answers)
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.identify(http)

    assert facts.capabilities.load is True
    assert "--metrics" in facts.describe()
    assert await ADAPTER.read_load(http) == (LoadReading(rank=0, running=1, waiting=0),)


async def test_without_either_the_load_is_unknown(make_engine, session, llamacpp_answers):
    engine = await make_engine(llamacpp_answers | {"/metrics": 501, "/slots": 501})
    http = EngineHttp(session, engine.url)

    assert (await ADAPTER.identify(http)).capabilities.load is False
    assert await ADAPTER.read_load(http) == ()


async def test_messages_are_rendered_before_they_are_tokenized(make_engine, session, llamacpp_answers):
    engine = await make_engine(llamacpp_answers)
    http = EngineHttp(session, engine.url)

    assert await ADAPTER.tokenize(http, "small", [{"role": "user", "content": "hi"}]) == [4, 5]
    assert engine.asked[-1].body["content"] == "<user>hi"

    engine.answers["/apply-template"] = 404
    assert await ADAPTER.tokenize(http, "small", [{"role": "user", "content": "hi"}]) is None
    assert await ADAPTER.tokenize(http, "small", "hi") == [4, 5]


@pytest.mark.parametrize("props", [404, {"total_slots": 4}, "<html>", [1]])
async def test_what_is_not_llamacpp(make_engine, session, llamacpp_answers, props):
    engine = await make_engine(llamacpp_answers | {"/props": props})

    assert await ADAPTER.identify(EngineHttp(session, engine.url)) is None


@pytest.mark.parametrize(("answer", "passes_on"), [(400, True), (501, False), (404, False)])
async def test_slots_are_passed_on_where_it_was_started_with_a_place_for_them(
    make_engine, session, llamacpp_answers, answer, passes_on
):
    llamacpp_answers["/props"]["model_path"] = "/some/where/small.gguf"
    engine = await make_engine(llamacpp_answers | {"/slots/0": answer})

    facts = await ADAPTER.identify(EngineHttp(session, engine.url))

    slots = KvShape(HandShake.LLAMACPP_SLOTS, model="small.gguf", version="b7000-abc", slots=4)
    assert facts.kv == (slots if passes_on else None)
    # Whether two of them see one directory is the operator's to say.
    assert kv_shape(facts, None) == (None, None)
    kv, complaint = kv_shape(facts, "shared-storage")
    assert (kv is not None, complaint is None) == (passes_on, passes_on)
