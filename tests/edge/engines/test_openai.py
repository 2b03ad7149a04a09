from __future__ import annotations

import pytest

from pointsman.edge.engines.http import EngineCallError, EngineHttp
from pointsman.edge.engines.openai import OpenAiAdapter

ADAPTER = OpenAiAdapter()


async def test_only_what_it_lists_is_known(make_engine, session):
    engine = await make_engine({"/v1/models": {"data": [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": ""}]}})
    http = EngineHttp(session, engine.url)

    facts = await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert facts.models == ("a", "b")
    assert (facts.version, facts.kv_capacity_tokens, facts.capabilities.stream_usage) == (None, None, None)
    assert (facts.capabilities.load, facts.capabilities.chat) == (False, None)
    assert await ADAPTER.read_load(http) == ()
    assert await ADAPTER.tokenize(http, "a", "x") is None


async def test_nothing_that_costs_is_asked(make_engine, session):
    engine = await make_engine({"/v1/models": {"data": [{"id": "a"}]}})
    http = EngineHttp(session, engine.url)

    await ADAPTER.probe(http, await ADAPTER.identify(http))

    assert {asked.method for asked in engine.asked} == {"GET"}


async def test_routes_are_read_where_it_describes_them(make_engine, session):
    engine = await make_engine(
        {"/v1/models": {"data": [{"id": "a"}]}, "/openapi.json": {"paths": {"/v1/embeddings": {}}}}
    )

    can = (await ADAPTER.identify(EngineHttp(session, engine.url))).capabilities

    assert (can.embeddings, can.chat, can.responses) == (True, False, False)


async def test_no_models_route_is_an_error_that_names_it(make_engine, session):
    engine = await make_engine({})

    with pytest.raises(EngineCallError, match="/v1/models answered 404"):
        await ADAPTER.identify(EngineHttp(session, engine.url))
