"""Which engines' models get a tokenizer, and from where."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers

from pointsman.core.model.errors import EngineError
from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.configuration.execution_group import KvEventEndpoints
from pointsman.edge.engines.facts import Capabilities, EngineFacts, KvEventSource
from pointsman.edge.prompts.encoder import NoPrompts, NotEncoded, PromptEncoder
from pointsman.edge.prompts.engine_prompts import EnginePrompts
from pointsman.edge.prompts.local_prompts import LocalPrompts
from pointsman.edge.prompts.tokenizer_files import TokenizerPlaces
from pointsman.edge.serving.engine_calls import EngineCalls
from pointsman.edge.serving.prompt_sources import PromptSources
from pointsman.edge.serving.tokenizing_engines import TokenizingEngines
from pointsman.edge.wire.openai import parse_completion
from support.waiting import eventually

SOURCE = WorkerSource(name="a", url="http://127.0.0.1:1")
HANG = "hang"
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
    places = TokenizerPlaces(tmp_path / "store", hub_url=None)
    made = PromptSources(encoder, calls, places, {"named": str(folder)}, first_pause_s=0.02)
    yield made
    await made.close()
    await calls.close()


async def source_of(encoder: PromptEncoder, model: str) -> object:
    async with asyncio.timeout(30):
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


# ---- looked for again, shared, forgotten


async def replaced(encoder: PromptEncoder, model: str, kind: type) -> None:
    async with asyncio.timeout(30):
        while not isinstance(encoder.source(model), kind):
            await asyncio.sleep(0.01)


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pointsman.edge.serving.tokenizer_lookup.FAILURE_KEPT_S", 0.0)


@pytest.mark.usefixtures("short_memory")
async def test_files_that_come_later_are_found(sources, encoder, folder, tmp_path, caplog):
    later = tmp_path / "later"
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD, tokenizer=str(later)), ["a/0"])
    await replaced(encoder, "m", NoPrompts)
    await asyncio.sleep(0.1)
    folder.rename(later)
    await replaced(encoder, "m", LocalPrompts)
    assert caplog.text.count("m: no tokenizer: ") == 1


async def test_a_new_engine_that_knows_better_is_listened_to_at_once(sources, encoder, folder):
    sources._first_pause_s = 60.0
    sources.engine_known(SOURCE, replace(facts(), capabilities=TOLD, tokenizer="/nowhere"), ["a/0"])
    await replaced(encoder, "m", NoPrompts)
    other = replace(SOURCE, name="b")
    sources.engine_known(other, replace(facts(), capabilities=replace(TOLD, tokenize=True)), ["b/0"])
    await replaced(encoder, "m", EnginePrompts)
    sources.engine_known(replace(SOURCE, name="c"), replace(facts(), capabilities=TOLD, tokenizer=str(folder)), [])
    await replaced(encoder, "m", LocalPrompts)


async def test_adapters_share_their_base_models_tokenizer_and_go_with_it(sources, encoder, folder):
    base = replace(facts(), capabilities=TOLD, tokenizer=str(folder))
    sources.engine_known(SOURCE, base, ["a/0"])
    prompts = await source_of(encoder, "m")
    loaded = replace(base, models=("m", "one", "two"), lora=("one", "two"))
    sources.engine_known(SOURCE, loaded, [])
    assert await source_of(encoder, "one") is prompts
    assert await source_of(encoder, "two") is prompts
    assert sources.is_adapter("two")

    sources.engine_known(SOURCE, replace(base, models=("m", "one"), lora=("one",)), [])
    assert encoder.source("two") is None
    assert not sources.is_adapter("two")
    assert sources.is_adapter("one")
    sources.engine_left(SOURCE)
    assert encoder.source("m") is encoder.source("one") is None
    del prompts
    gc.collect()
    assert not sources._lookup._loaded
    sources.engine_known(SOURCE, base, ["a/0"])
    assert isinstance(await source_of(encoder, "m"), LocalPrompts)


async def test_an_adapter_is_tokenized_as_the_configuration_says_of_its_base_model(sources, encoder):
    loaded = replace(facts(), capabilities=TOLD, models=("named", "one"), lora=("one",), tokenizer="/nowhere")
    sources.engine_known(SOURCE, loaded, ["a/0"])
    assert await source_of(encoder, "one") is await source_of(encoder, "named")


async def test_a_model_that_another_engine_serves_is_kept(sources, encoder, folder):
    told = replace(facts(), capabilities=TOLD, tokenizer=str(folder))
    sources.engine_known(SOURCE, told, ["a/0"])
    sources.engine_known(replace(SOURCE, name="b"), told, ["b/0"])
    prompts = await source_of(encoder, "m")
    sources.engine_left(SOURCE)
    assert encoder.source("m") is prompts


# ---- engines that tokenize


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def calls() -> AsyncIterator[EngineCalls]:
    calls = EngineCalls(None)
    yield calls
    await calls.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def asked(calls, clock) -> TokenizingEngines:
    return TokenizingEngines(calls, clock, try_limit_s=30.0)


def add(asked: TokenizingEngines, name: str, url: str) -> None:
    asked.known(replace(SOURCE, name=name, url=url), facts(), ["m"])


async def test_engines_take_turns_and_one_that_left_is_not_asked(asked, make_engine):
    a, b = [await make_engine({"/tokenize": {"tokens": [i]}}) for i in (1, 2)]
    add(asked, "a", a.url)
    add(asked, "b", b.url)
    tokenize = asked.tokenize_of("m")
    assert [await tokenize("x") for _ in range(4)] == [[1], [2], [1], [2]]
    asked.left("a")
    assert [await tokenize("x") for _ in range(2)] == [[2], [2]]
    asked.left("b")
    with pytest.raises(EngineError, match="none is left"):
        await tokenize("x")


async def test_one_that_hangs_is_skipped_and_tried_by_one_prompt_at_a_time(
    asked, calls, clock, make_engine, monkeypatch, caplog
):
    engine = await make_engine({"/tokenize": HANG})
    add(asked, "a", engine.url)
    to, begun = calls.to, []
    monkeypatch.setattr(calls, "to", lambda source: begun.append(source) or to(source))
    asked._try_limit_s = 0.3
    tokenize = asked.tokenize_of("m")
    together = await asyncio.gather(*(tokenize("x") for _ in range(5)), return_exceptions=True)
    assert {type(error) for error in together} == {TimeoutError}
    assert "a: not asked to tokenize for 2 s: no tokens within 0.3 s" in caplog.text
    for _ in range(3):
        with pytest.raises(EngineError, match="failed lately"):
            await tokenize("x")
    assert len(begun) == 5

    clock.now_s += 2.1
    trial = asyncio.create_task(tokenize("x"))
    await eventually(lambda: len(begun) == 6)
    with pytest.raises(EngineError, match="failed lately"):
        await tokenize("x")
    with pytest.raises(TimeoutError):
        await trial
    clock.now_s += 2.1
    with pytest.raises(EngineError, match="failed lately"):  # twice as long now
        await tokenize("x")
    assert len(begun) == 6
    engine.answers["/tokenize"] = {"tokens": [1]}
    asked._try_limit_s = 30.0
    clock.now_s += 2.1
    assert [await tokenize("x") for _ in range(2)] == [[1], [1]]


async def test_one_that_is_gone_costs_a_prompt_nothing(asked, make_engine):
    engine = await make_engine({"/tokenize": {"tokens": [1]}})
    add(asked, "dead", "http://127.0.0.1:1")
    add(asked, "b", engine.url)
    tokenize = asked.tokenize_of("m")
    assert [await tokenize("x") for _ in range(3)] == [[1], [1], [1]]


async def test_a_prompt_that_an_engine_refuses_says_nothing_of_the_engine(asked, make_engine):
    engine = await make_engine({"/tokenize": 400})
    add(asked, "a", engine.url)
    tokenize = asked.tokenize_of("m")
    assert [await tokenize("x"), await tokenize("x")] == [None, None]
    assert engine.count("/tokenize") == 2


async def test_without_an_engine_nobody_waits(sources, encoder, make_engine):
    engine = await make_engine({"/tokenize": HANG})
    source = replace(SOURCE, url=engine.url)
    sources.engine_known(source, replace(facts(), capabilities=replace(TOLD, tokenize=True)), ["a/0"])
    await source_of(encoder, "m")
    sources.engine_known(replace(source, name="b"), replace(facts(), capabilities=TOLD), ["b/0"])
    sources.engine_left(source)
    async with asyncio.timeout(0.5):
        outcome = await encoder.encode("m", parse_completion(b'{"model": "m", "prompt": "x"}'))
    assert isinstance(outcome, NotEncoded)
    assert "none is left" in outcome.detail
