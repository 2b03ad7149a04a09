"""The official client against the fleet, and against the engine itself: the same bytes, apart from ids and times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.local

MESSAGES = [{"role": "user", "content": "Name three colours."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "colour",
        "schema": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]},
    },
}
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1, "max_tokens": 12}

CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "system and turns": {
        "messages": [
            {"role": "system", "content": "Be brief. Grüße, 你好, 🚦."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "Bye"},
        ]
    },
    "content parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say yes."}]}]},
    "tools": {"tools": TOOLS, "messages": [{"role": "user", "content": "Weather in Rome?"}]},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "stop": {"stop": ["\n", "3"]},
    "JSON mode": {"response_format": {"type": "json_object"}, "max_tokens": 24},
    "JSON schema": {"response_format": SCHEMA, "max_tokens": 24},
    "max_completion_tokens": {"max_tokens": openai.NOT_GIVEN, "max_completion_tokens": 3},
    "unknown fields": {"extra_body": {"mirostat": 0, "x_unknown": {"a": [1, 12345678901234567890]}}},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": 0.1, "logit_bias": {"100": -5}},
    "user and metadata": {"user": "me"},
}
STREAMS = {
    "stream": {},
    "stream with usage": {"stream_options": {"include_usage": True}},
    "stream of tools": {"tools": TOOLS, "messages": [{"role": "user", "content": "Weather in Rome?"}]},
    "stream with logprobs": {"logprobs": True, "top_logprobs": 2},
    "stream with stop": {"stop": ["\n"]},
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "The capital of France is"},
    "token ids": {"prompt": [504, 3575, 282, 4649, 314]},
    "stop": {"prompt": "1, 2, 3, 4,", "stop": ["7"]},
    "logprobs": {"prompt": "The sky is", "logprobs": 2},
    "stream": {"prompt": "Once upon a time", "stream": True},
}

VOLATILE = (
    (re.compile(rb'"(id|tool_call_id)":"[^"]*"'), rb'"\1":"*"'),
    (re.compile(rb'"created":\d+'), b'"created":0'),
    (re.compile(rb'"timings":\{[^}]*\}'), b'"timings":{}'),
)


def stable(body: bytes) -> bytes:
    for pattern, instead in VOLATILE:
        body = pattern.sub(instead, body)
    return body


@pytest.fixture(scope="module")
def worker(up_fleet) -> str:
    """One engine of the first model: all requests of this module are pinned to it, so that both ways share a cache."""
    return next(w["id"] for w in up_fleet.status()["workers"] if "first" in w["models"])


@pytest.fixture(scope="module")
def through(up_fleet, worker: str) -> Iterator[openai.OpenAI]:
    headers = {"x-pointsman-worker": worker}
    with openai.OpenAI(
        base_url=f"{up_fleet.url}/v1", api_key="client-key", default_headers=headers, max_retries=0
    ) as client:
        yield client


@pytest.fixture(scope="module")
def direct(up_fleet, worker: str) -> Iterator[openai.OpenAI]:
    # llama.cpp closes connections that were idle for 5 s; the front end copes with that, a client alone must retry
    with openai.OpenAI(base_url=f"{up_fleet.engine_url(worker)}/v1", api_key="x", max_retries=2) as client:
        yield client


def chat_bytes(client: openai.OpenAI, **fields: Any) -> bytes:
    request = {"model": "first", "messages": MESSAGES} | GREEDY | fields
    with client.chat.completions.with_streaming_response.create(**request) as answer:
        return answer.read()


def completion_bytes(client: openai.OpenAI, **fields: Any) -> bytes:
    with client.completions.with_streaming_response.create(**({"model": "first"} | GREEDY | fields)) as answer:
        return answer.read()


class TestSameBytes:
    """The first, direct request fills the engine's cache, so that the two that are compared find the same one."""

    @pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS.keys())
    def test_chat(self, through: openai.OpenAI, direct: openai.OpenAI, fields: dict[str, Any]) -> None:
        chat_bytes(direct, **fields)
        wanted = stable(chat_bytes(direct, **fields))
        assert b'"choices"' in wanted
        assert stable(chat_bytes(through, **fields)) == wanted

    @pytest.mark.parametrize("fields", STREAMS.values(), ids=STREAMS.keys())
    def test_streams(self, through: openai.OpenAI, direct: openai.OpenAI, fields: dict[str, Any]) -> None:
        chat_bytes(direct, stream=True, **fields)
        wanted = stable(chat_bytes(direct, stream=True, **fields))
        assert wanted.endswith(b"data: [DONE]\n\n")
        got = stable(chat_bytes(through, stream=True, **fields))
        if "stream_options" in fields:
            assert got == wanted
        else:
            # llama.cpp puts its timings, which nobody can get without the usage event, into that event or the last one
            assert got.replace(b',"timings":{}', b"") == wanted.replace(b',"timings":{}', b"")

    @pytest.mark.parametrize("fields", COMPLETIONS.values(), ids=COMPLETIONS.keys())
    def test_completions(self, through: openai.OpenAI, direct: openai.OpenAI, fields: dict[str, Any]) -> None:
        completion_bytes(direct, **fields)
        wanted = stable(completion_bytes(direct, **fields))
        got = stable(completion_bytes(through, **fields))
        assert got.replace(b',"timings":{}', b"") == wanted.replace(b',"timings":{}', b"")

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [{"role": "user", "content": "x " * 40_000}]},
            {"response_format": {"type": "nonsense"}},
            {"n": 0},
            {"temperature": "hot"},
            {"tools": [{"type": "nonsense"}]},
        ],
    )
    def test_errors_of_the_engine(self, through: openai.OpenAI, direct: openai.OpenAI, fields: dict[str, Any]) -> None:
        def error_of(client: openai.OpenAI) -> tuple[int, bytes] | bytes:
            try:
                return stable(chat_bytes(client, **fields))
            except openai.APIStatusError as error:
                return error.status_code, error.response.content

        assert error_of(through) == error_of(direct)


class TestMeaning:
    """What the client's own types make of the answers."""

    def test_chat(self, through: openai.OpenAI) -> None:
        answer = through.chat.completions.create(model="first", messages=MESSAGES, **GREEDY)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason in ("stop", "length")
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= 12

    def test_a_stream_has_no_usage_chunk_unless_asked_for(self, through: openai.OpenAI) -> None:
        for options in (None, {"include_usage": True}):
            extra = {"stream_options": options} if options else {}
            chunks = list(
                through.chat.completions.create(model="first", messages=MESSAGES, stream=True, **GREEDY, **extra)
            )
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert sum(not c.choices for c in chunks) == (1 if options else 0)

    def test_three_answers_at_once(self, through: openai.OpenAI) -> None:
        answer = through.chat.completions.create(
            model="first", messages=MESSAGES, n=3, max_tokens=8, temperature=1.0, extra_body={"ignore_eos": True}
        )
        assert sorted(choice.index for choice in answer.choices) == [0, 1, 2]
        assert all(choice.message.content for choice in answer.choices)

    def test_the_same_seed_gives_the_same_answer(self, through: openai.OpenAI) -> None:
        def ask() -> str | None:
            answer = through.chat.completions.create(
                model="first",
                messages=MESSAGES,
                temperature=1.0,
                seed=7,
                max_tokens=12,
                extra_body={"cache_prompt": False},
            )
            return answer.choices[0].message.content

        assert ask() == ask()

    def test_json_mode_gives_json(self, through: openai.OpenAI) -> None:
        answer = through.chat.completions.create(
            model="first", messages=MESSAGES, response_format=SCHEMA, temperature=0, max_tokens=40
        )
        assert set(json.loads(answer.choices[0].message.content or "")) == {"name"}

    def test_models(self, through: openai.OpenAI) -> None:
        assert [model.id for model in through.models.list()] == ["first", "second"]
        assert through.models.retrieve("second").owned_by == "pointsman"

    def test_error_classes(self, through: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as unknown:
            through.chat.completions.create(model="nope", messages=MESSAGES)
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as empty:
            through.chat.completions.create(model="first", messages=[])
        assert empty.value.param == "messages"


def test_two_models_in_one_fleet(up_fleet) -> None:
    with openai.OpenAI(base_url=f"{up_fleet.url}/v1", api_key="x", max_retries=0) as client:
        for model in ("first", "second"):
            raw = client.chat.completions.with_raw_response.create(model=model, messages=MESSAGES, **GREEDY)
            assert raw.headers["x-pointsman-worker"].startswith(model)
            assert raw.parse().model == model
