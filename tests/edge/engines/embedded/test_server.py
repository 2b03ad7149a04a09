"""The embedded engine over HTTP: what only a real model shows."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from pointsman.core.model.errors import ConfigError, EngineError, ModelFileError
from pointsman.edge.engines.detect import detect
from pointsman.edge.engines.embedded.server import EmbeddedServer
from pointsman.edge.engines.embedded.settings import EmbeddedSettings
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER
from pointsman.edge.engines.http import EngineHttp
from pointsman.edge.engines.openai_server.sampling import SampledRequest
from support.embedded_servers import start_embedded, tiny
from support.engine_client import Client, finish_reasons, text_of

EXACT = {"ignore_eos": True, "temperature": 0}


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def client(stack: AsyncExitStack, session: aiohttp.ClientSession) -> Client:
    return Client(session, await start_embedded(stack), EXACT)


def choice_of(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.text
    (choice,) = answer.json["choices"]
    return choice


async def greedy_ids(client: Client, prompt: object, count: int) -> list[int]:
    return choice_of(await client.complete(prompt, max_tokens=count, return_token_ids=True))["token_ids"]


async def test_until_the_model_is_loaded_everything_is_503(
    stack: AsyncExitStack, session: aiohttp.ClientSession
) -> None:
    server = EmbeddedServer(EmbeddedSettings())
    await server.start()
    stack.push_async_callback(server.close)
    client = Client(session, server)
    for path in ("/health", "/v1/models", "/metrics"):
        answer = await client.get(path)
        assert (answer.status, "loads its model" in answer.text) == (503, True)
    with pytest.raises(RuntimeError, match="not loaded"):
        _ = server.state
    await server.load()
    assert (await client.get("/health")).status == 200
    card = (await client.get("/v1/models")).json["data"][0]
    assert (card["id"], card["root"], card["max_model_len"]) == ("seed:0", "seed:0", 8192)


async def test_a_model_that_can_not_be_loaded_is_named(stack: AsyncExitStack) -> None:
    server = EmbeddedServer(EmbeddedSettings(model="/absent"))
    await server.start()
    stack.push_async_callback(server.close)
    with pytest.raises(ModelFileError, match="/absent: there is no such file"):
        await server.load()


async def test_what_is_taken_leaves_nothing_open(stack: AsyncExitStack) -> None:
    first = await start_embedded(stack)
    second = EmbeddedServer(EmbeddedSettings(port=first.port, kv_events="tcp://127.0.0.1:*"))
    with pytest.raises(OSError, match="in use"):
        await second.start()
    assert second._publisher._pub is None
    with pytest.raises(EngineError, match="'nonsense' can't be used"):
        await EmbeddedServer(EmbeddedSettings(kv_events="nonsense")).start()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": 24}, "must divide 64"),
        ({"served_name": ""}, "empty name"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"replay": "tcp://127.0.0.1:*"}, "set kv_events"),
        ({"kv_events": "tcp://127.0.0.1:65536"}, "kv_events is 'tcp://127.0.0.1:65536': ports end at 65535"),
        ({"kv_events": "tcp://127.0.0.1:*", "replay": "tcp://127.0.0.1:900000"}, "replay is"),
        ({"max_model_len": 8193}, "the model knows 8192 positions"),
        ({"num_blocks": 4, "max_model_len": 100}, "more than the KV cache holds"),
        ({"max_batched_tokens": 8}, "at least max_num_seqs"),
    ],
)
def test_bad_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EmbeddedSettings(**fields).engine_config(tiny().config)


async def test_a_cache_that_no_machine_has_is_refused(stack: AsyncExitStack) -> None:
    with pytest.raises(ConfigError, match="num_blocks is 1000000000000000: more than this machine has"):
        await start_embedded(stack, num_blocks=10**15)


def test_the_cache_is_as_large_as_the_model_lets_it_be() -> None:
    assert EmbeddedSettings().engine_config(tiny().config).num_blocks == 4096
    assert EmbeddedSettings(num_blocks=10).engine_config(tiny().config).max_model_len == 160


async def test_an_answer_ends_with_the_models_end(client: Client) -> None:
    likely = {str(END_OF_ANSWER): 100}
    asked = {"max_tokens": 8, "logit_bias": likely, "return_token_ids": True}
    ended = await client.complete("abc", **asked, ignore_eos=False)
    choice = choice_of(ended)
    assert (choice["finish_reason"], choice["stop_reason"], choice["text"]) == ("stop", None, "")
    assert choice["token_ids"] == [END_OF_ANSWER]
    assert ended.json["usage"]["completion_tokens"] == 1
    later = choice_of(await client.complete("abc", **asked, ignore_eos=False, min_tokens=3))
    assert (later["finish_reason"], len(later["token_ids"])) == ("stop", 4)
    assert END_OF_ANSWER not in later["token_ids"][:3]
    going_on = choice_of(await client.complete("abc", **asked))
    assert (going_on["finish_reason"], going_on["token_ids"]) == ("length", [END_OF_ANSWER] * 8)


async def test_a_token_that_is_named_ends_the_answer_and_is_not_shown(client: Client) -> None:
    tokens = await greedy_ids(client, "abc def", 6)
    before = client.server.state.text.decode(tokens[: tokens.index(tokens[3])])
    for stream in (False, True):
        answer = await client.complete("abc def", max_tokens=6, stop_token_ids=[tokens[3]], stream=stream)
        choice = answer.events[-1]["choices"][0] if stream else choice_of(answer)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", tokens[3])
        assert (text_of(answer.events) if stream else choice["text"]) == before


async def test_without_a_limit_a_chat_goes_on_to_the_end_of_the_context(
    stack: AsyncExitStack, session: aiohttp.ClientSession
) -> None:
    client = Client(session, await start_embedded(stack, max_model_len=64), EXACT)
    answer = await client.chat("hello")
    assert (choice_of(answer)["finish_reason"], answer.json["usage"]["total_tokens"]) == ("length", 64)


async def test_a_seed_makes_chance_repeat_itself(client: Client) -> None:
    async def drawn(**fields: object) -> list[int]:
        answer = await client.complete("abc", max_tokens=12, temperature=1.5, return_token_ids=True, **fields)
        return choice_of(answer)["token_ids"]

    assert await drawn(seed=4) == await drawn(seed=4) != await drawn(seed=5)
    assert await drawn() != await drawn(), "a request without a seed draws anew"
    assert await drawn(seed=4, top_k=1) == await greedy_ids(client, "abc", 12)


async def test_an_engine_with_a_seed_repeats_itself(stack: AsyncExitStack, session: aiohttp.ClientSession) -> None:
    seen = []
    for _ in range(2):
        client = Client(session, await start_embedded(stack, seed=7), {"ignore_eos": True})
        seen.append((await client.complete("abc", max_tokens=12)).json["choices"][0]["text"])
    assert seen[0] == seen[1]


async def test_almost_no_temperature_is_a_small_one(client: Client) -> None:
    async def text(temperature: float) -> str:
        return str((await client.complete(temperature=temperature, seed=1)).json["choices"][0]["text"])

    assert await text(1e-310) == await text(1e-5) == await text(0.01)
    assert (await text(1e-310))[0] == (await text(0))[0]


async def test_bias_and_penalties_change_the_choice(client: Client) -> None:
    plain = await greedy_ids(client, "abc", 8)
    banned = await client.complete("abc", max_tokens=8, return_token_ids=True, logit_bias={str(plain[0]): -100})
    assert plain[0] not in choice_of(banned)["token_ids"]
    once = choice_of(await client.complete("abc", max_tokens=8, return_token_ids=True, presence_penalty=2))
    assert len(set(once["token_ids"])) == 8 > len(set(plain))


async def test_logprobs_of_a_chat(client: Client) -> None:
    answer = await client.chat("hello", max_tokens=4, logprobs=True, top_logprobs=3)
    content = choice_of(answer)["logprobs"]["content"]
    assert len(content) == 4
    for entry in content:
        # What is taken greedily is the likeliest.
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
        assert bytes(entry["bytes"]).decode() == entry["token"]
        odds = [top["logprob"] for top in entry["top_logprobs"]]
        assert odds == sorted(odds, reverse=True)
        assert all(odd < 0 for odd in odds)
    events = (await client.chat("hello", max_tokens=4, logprobs=True, top_logprobs=3, stream=True)).events
    told = [event["choices"][0]["logprobs"] for event in events if event["choices"][0]["logprobs"]]
    assert [entry for one in told for entry in one["content"]] == content
    bare = choice_of(await client.chat("hello", max_tokens=1, logprobs=True))["logprobs"]["content"]
    assert bare[0]["top_logprobs"] == []


async def test_logprobs_of_a_completion(client: Client) -> None:
    choice = choice_of(await client.complete("abc", max_tokens=4, logprobs=2))
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"][0] == 0
    assert logprobs["text_offset"][1] == len(logprobs["tokens"][0])
    for name, odd, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[name] == odd == max(top.values())
        assert len(top) == 2
    drawn = choice_of(await client.complete("abc", max_tokens=4, logprobs=0, temperature=1, seed=1))["logprobs"]
    assert [list(top) for top in drawn["top_logprobs"]] == [[name] for name in drawn["tokens"]]
    events = (await client.complete("abc", max_tokens=4, logprobs=2, stream=True)).events
    streamed = [event["choices"][0]["logprobs"] for event in events]
    assert [offset for one in streamed for offset in one["text_offset"]] == logprobs["text_offset"]


async def test_a_character_of_several_tokens_comes_whole(client: Client) -> None:
    tokens = client.server.state.text.encode("é€😀", add_special_tokens=False)
    assert len(tokens) == 9
    asked: list[int] = []
    pieces: list[str] = []
    # The model is led along the text by what it may not avoid.
    for token in tokens:
        events = (
            await client.complete(
                [*client.server.state.text.encode("a", add_special_tokens=False), *asked],
                max_tokens=1,
                logit_bias={str(token): 100},
                return_token_ids=True,
                stream=True,
            )
        ).events
        asked += events[-1]["choices"][0]["token_ids"]
        pieces.append(text_of(events))
    assert asked == tokens
    stream = client.server.state.text.stream(skip_special_tokens=True)
    assert "".join(map(stream.feed, tokens)) == "é€😀"
    assert set(pieces) == {""}, "alone, a part of a character is no character"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"tool_choice": "required"}, "tool_choice"),
        ("chat", {"prompt_logprobs": 1}, "prompt_logprobs"),
        ("chat", {"echo": True}, "echo"),
        ("chat", {"structured_outputs": {"json": {}}}, "structured_outputs"),
        ("complete", {"guided_choice": ["a", "b"]}, "guided_choice"),
        ("complete", {"bad_words": ["x"]}, "bad_words"),
        (
            "complete",
            {"echo": True, "logprobs": 1, "kv_transfer_params": {"do_remote_decode": True}},
            "kv_transfer_params",
        ),
        ("complete", {"suffix": "x"}, "suffix"),
        ("complete", {"n": 2}, "n"),
        ("complete", {"best_of": 3}, "best_of"),
    ],
)
async def test_what_it_can_not_do_is_refused(client: Client, path: str, fields: dict[str, object], param: str) -> None:
    answer = await (client.chat if path == "chat" else client.complete)(**fields)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    allowed = {"response_format": {"type": "text"}} if path == "chat" else {"best_of": 1}
    assert (await (client.chat if path == "chat" else client.complete)(max_tokens=1, **allowed)).status == 200


async def forced(client: Client, prompt: list[int], token: int) -> float:
    """The logprob of a token behind a prompt, by an answer that has to begin with it."""
    choice = choice_of(await client.complete(prompt, max_tokens=1, logprobs=0, logit_bias={str(token): 100}))
    (logprob,) = choice["logprobs"]["token_logprobs"]
    return float(logprob)


@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 4, "max_batched_tokens": 7}, {"prefix_caching": False}])
async def test_logprobs_of_an_echoed_prompt_are_those_of_answers_that_said_it(
    stack: AsyncExitStack, session: aiohttp.ClientSession, settings: dict[str, Any]
) -> None:
    client = Client(session, await start_embedded(stack, **settings), EXACT)
    text = "the time of day, and now so much more of it"
    prompt = client.server.state.text.encode(text)
    shown = {"max_tokens": 3, "logprobs": 2, "return_token_ids": True}
    plain = choice_of(await client.complete(text, **shown))
    answer = await client.complete(text, echo=True, **shown)
    choice = choice_of(answer)
    logprobs = choice["logprobs"]
    assert choice["text"] == text + plain["text"]
    assert choice["token_ids"] == plain["token_ids"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    behind = [await forced(client, prompt[:count], prompt[count]) for count in range(1, len(prompt))]
    assert logprobs["token_logprobs"][1:] == behind + plain["logprobs"]["token_logprobs"], "bit by bit"
    assert logprobs["top_logprobs"][len(prompt) :] == plain["logprobs"]["top_logprobs"]
    for name, odd, top in zip(logprobs["tokens"][1:], behind, logprobs["top_logprobs"][1:], strict=False):
        assert top[name] == odd
        assert 2 <= len(top) <= 3
    ends = [0, *itertools.accumulate(map(len, logprobs["tokens"]))]
    assert logprobs["text_offset"] == ends[:-1]
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "what is cached has no logits"


async def test_logprobs_of_an_echoed_prompt_are_streamed_before_those_of_the_answer(client: Client) -> None:
    asked = {"max_tokens": 3, "logprobs": 2, "echo": True, "n": 2, "temperature": 1, "seed": 4}
    for prompt in ("abc and more", "a", ["one", "two of them"]):
        whole = (await client.complete(prompt, **asked)).json["choices"]
        events = (await client.complete(prompt, **asked, stream=True)).events
        for choice in whole:
            told = [c["logprobs"] for e in events for c in e["choices"] if c["index"] == choice["index"]]
            assert len(told) == 1 + 3
            for name, values in choice["logprobs"].items():
                assert [value for one in told for value in one[name]] == values


async def test_an_echoed_prompt_is_cached_for_others(client: Client) -> None:
    text = "a prompt that is long enough to fill blocks"
    for _ in range(2):
        answer = await client.complete(text, max_tokens=1, echo=True, logprobs=1)
        assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    plain = await client.complete(text, max_tokens=1)
    assert plain.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_tokens_without_text_are_events_too(client: Client) -> None:
    ends = {"logit_bias": {str(END_OF_ANSWER): 100}, "max_tokens": 5, "stream": True}
    assert len((await client.complete("abc", **ends)).events) == 5
    assert len((await client.chat("abc", **ends)).events) == 1 + 5
    held = await client.complete("abc", max_tokens=5, stream=True, stop=["never seen"])
    assert len(held.events) == 5


async def test_a_step_that_fails_is_an_error_at_the_client(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = client.server.state.runner

    def broken(work: object) -> None:
        raise FloatingPointError("no such number")

    monkeypatch.setattr(runner.engine, "compute", broken)
    for stream in (False, True):
        answer = await client.complete("abc", stream=stream)
        assert (answer.status, "failed while it computed" in answer.text) == (500, True)
        assert "no such number" not in answer.text
    monkeypatch.undo()
    real, steps = runner.engine.compute, 0

    def breaks_later(work: Any) -> None:
        nonlocal steps
        steps += 1
        (real if steps < 4 else broken)(work)

    monkeypatch.setattr(runner.engine, "compute", breaks_later)
    answer = await client.complete("abc", stream=True)
    assert answer.status == 200
    assert "error" in answer.events[-1]
    assert finish_reasons(answer.events[:-1]) == []
    assert runner.model.idle


async def test_an_engine_whose_books_are_wrong_is_not_healthy(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(now_ms: float) -> None:
        raise RuntimeError("wrong")

    monkeypatch.setattr(client.server.state.runner.engine, "begin", broken)
    assert [(await client.chat()).status for _ in range(2)] == [500, 500]
    assert (await client.get("/health")).status == 503
    assert (await client.get("/metrics")).status == 200


async def test_it_is_found_as_vllm_with_all_that_is_needed(
    stack: AsyncExitStack, session: aiohttp.ClientSession
) -> None:
    server = await start_embedded(stack, kv_events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*")
    http = EngineHttp(session, server.url)
    adapter, facts = await detect(http)
    assert (adapter.kind, facts.version, facts.models) == ("vllm", "0.32.0+embedded", ("m",))
    assert (facts.block_size_tokens, facts.kv_capacity_tokens, facts.max_context_tokens) == (4, 1024, 512)
    assert facts.capabilities.kv_events is not None
    assert facts.capabilities.kv_events[0].endpoint == server.state.publisher.endpoint
    assert (await adapter.probe(http, facts)).capabilities.cached_tokens is True
    (load,) = await adapter.read_load(http)
    assert load.gpu_use is not None


class Transfers:
    """Keeps what it is told, and answers with it."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.aborts = 0

    def prepared(self, request: SampledRequest) -> SampledRequest:
        self.told.append(request.kv_transfer_params)
        return request

    def aborted(self, sequence: object) -> None:
        self.aborts += 1

    def answer(self, sequences: list[Any]) -> Mapping[str, object] | None:
        params = sequences[0].request.kv_transfer_params
        return None if params is None else {"seen": params}

    def nothing(self, *given: object) -> None:
        """Of these nothing is asked here."""

    refused = reserved = finished = lost = nothing


async def test_what_is_said_of_kv_reaches_the_engine_and_the_answer(
    stack: AsyncExitStack, session: aiohttp.ClientSession
) -> None:
    server = await start_embedded(stack, transfer=None)
    transfers = server.state.runner.transfers = Transfers()
    client = Client(session, server, EXACT)
    params = {"do_remote_decode": True}
    told = {"seen": params}
    for ask in (client.chat, client.complete):
        asked = {"max_tokens": 2, "kv_transfer_params": params}
        assert (await ask(**asked)).json["kv_transfer_params"] == told
        events = (await ask(**asked, stream=True)).events
        assert [event.get("kv_transfer_params") for event in events] == [None] * (len(events) - 1) + [told]
        events = (await ask(**asked, stream=True, stream_options={"include_usage": True})).events
        assert [event.get("kv_transfer_params") for event in events] == [None] * (len(events) - 1) + [told]
        assert "kv_transfer_params" not in (await ask(max_tokens=2, stream=True)).text
        assert (await ask(max_tokens=2)).json["kv_transfer_params"] is None
    assert transfers.told == [params] * 6
    reading = asyncio.ensure_future(client.complete("abc", max_tokens=500, kv_transfer_params=params))
    while not server.state.runner.model.running:
        await asyncio.sleep(0.001)
    reading.cancel()
    while not server.state.runner.model.idle:
        await asyncio.sleep(0.001)
    assert transfers.aborts == 1
