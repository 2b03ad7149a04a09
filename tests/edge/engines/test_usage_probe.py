from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from pointsman.edge.engines.facts import Capabilities, EngineFacts
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.usage_probe import probe_cached_tokens

FACTS = EngineFacts(kind="vllm", version="1", models=("m",), block_size_tokens=32, max_context_tokens=4096)


def usage(cached: object) -> dict[str, object]:
    return {"usage": {"prompt_tokens_details": cached}}


async def test_a_zero_is_a_report(make_engine, session):
    engine = await make_engine({"/v1/completions": usage({"cached_tokens": 0})})

    facts = await probe_cached_tokens(EngineHttp(session, engine.url), FACTS, "do x")

    assert facts.capabilities.cached_tokens is True
    assert facts.hints == ()
    assert [len(asked.body["prompt"]) for asked in engine.asked] == [33]
    assert engine.asked[0].body["max_tokens"] == 1


async def test_an_engine_that_leaves_out_zeros_is_asked_twice(make_engine, session):
    answers = iter([usage(None), usage({"cached_tokens": 32})])
    engine = await make_engine({"/v1/completions": lambda _body: next(answers)})

    facts = await probe_cached_tokens(EngineHttp(session, engine.url), FACTS, "do x")

    assert facts.capabilities.cached_tokens is True


async def test_none_twice_is_off_with_a_hint(make_engine, session):
    engine = await make_engine({"/v1/completions": {"usage": None}})

    facts = await probe_cached_tokens(EngineHttp(session, engine.url), FACTS, "do x")

    assert facts.capabilities.cached_tokens is False
    assert facts.hints == ("cached_tokens off: do x",)
    assert engine.count("/v1/completions") == 2


@pytest.mark.parametrize("answer", [400, 500, "<html>", "hang"])
async def test_a_failed_probe_leaves_it_unknown_and_says_so(make_engine, session, caplog, answer):
    caplog.set_level(logging.INFO, "pointsman")
    engine = await make_engine({"/v1/completions": answer})

    facts = await probe_cached_tokens(EngineHttp(session, engine.url, timeout_s=0.1), FACTS, "do x")

    assert facts == FACTS
    assert "could not find out" in caplog.text


async def test_the_prompt_fits_the_context(make_engine, session):
    engine = await make_engine({"/v1/completions": usage({"cached_tokens": 0})})

    await probe_cached_tokens(EngineHttp(session, engine.url), replace(FACTS, max_context_tokens=8), None)

    assert len(engine.asked[0].body["prompt"]) == 7


@pytest.mark.parametrize(
    "facts", [replace(FACTS, models=()), replace(FACTS, capabilities=Capabilities(cached_tokens=True))]
)
async def test_nothing_is_asked_where_nothing_can_be_learned(make_engine, session, facts):
    engine = await make_engine({})

    assert await probe_cached_tokens(EngineHttp(session, engine.url), facts, None) == facts
    assert engine.asked == []
