"""Which engines' models get a tokenizer, and from where."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.execution_group import KvEventEndpoints
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from pointsman.edge.prompts.encoder import NoPrompts, PromptEncoder
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.local_prompts import LocalPrompts
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.prompt_sources import PromptSources

SOURCE = WorkerSource(name="a", url="http://127.0.0.1:1")
TOLD = Capabilities(kv_events=(KvEventSource(0, "tcp://*:5557"),))


def facts(kind: str = "vllm", **capabilities: object) -> EngineFacts:
    return EngineFacts(kind=kind, version="1", models=("m",), capabilities=replace(Capabilities(), **capabilities))


@pytest.fixture
def encoder():
    encoder = PromptEncoder()
    yield encoder
    encoder.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    return folder


@pytest.fixture
async def sources(encoder: PromptEncoder, folder: Path, tmp_path: Path) -> AsyncIterator[PromptSources]:
    calls = EngineCalls(None)
    made = PromptSources(encoder, calls, TokenizerPlaces(tmp_path / "store", hub_url=None), {"named": str(folder)})
    yield made
    await made.close()
    await calls.close()


async def source_of(encoder: PromptEncoder, model: str) -> object:
    async with asyncio.timeout(5):
        while (found := encoder.source(model)) is None:
            await asyncio.sleep(0.01)
    return found


async def test_the_directory_that_the_engine_loaded_is_read(sources, encoder, folder):
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD, tokenizer=str(folder)), ["a/0"])
    assert isinstance(await source_of(encoder, "m"), LocalPrompts)


async def test_the_configuration_wins(sources, encoder):
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD, models=("named",), tokenizer="/nowhere"), ["a/0"])
    assert isinstance(await source_of(encoder, "named"), LocalPrompts)


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_events_that_only_the_configuration_knows_of_are_enough(sources, encoder, folder, kind):
    source = replace(SOURCE, kv_events=KvEventEndpoints(endpoint="tcp://127.0.0.1:5557"))
    sources.engine_known(source, replace(facts(kind), tokenizer=str(folder)), ["a/0"])
    assert isinstance(await source_of(encoder, "m"), LocalPrompts)


async def test_an_engine_that_tokenizes_is_asked_where_no_files_are_found(sources, encoder, caplog):
    can = replace(TOLD, tokenize=True)
    sources.engine_known(SOURCE, replace(facts(), capabilities=can, tokenizer="/nowhere"), ["a/0"])
    assert isinstance(await source_of(encoder, "m"), EnginePrompts)
    assert "m: no tokenizer: " in caplog.text
    assert "/nowhere" in caplog.text


async def test_nobody_can_tokenize(sources, encoder):
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD), ["a/0"])
    assert isinstance(await source_of(encoder, "m"), NoPrompts)


async def test_without_events_nothing_is_looked_for(sources, encoder, folder):
    sources.engine_known(SOURCE, replace(facts(kv_events=()), tokenizer=str(folder)), ["a/0"])
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD, models=("named",)), ["a/0"])
    await source_of(encoder, "named")
    assert encoder.source("m") is None
