"""Answers in vLLM's shape, whichever engine of ours gives them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from support.engine_client import finish_reasons, text_of


async def test_a_chat_answer_has_vllms_shape_and_exactly_max_tokens(client: Any) -> None:
    answer = await client.chat(max_tokens=7)
    body = answer.json
    assert (answer.status, body["object"], body["model"]) == (200, "chat.completion", "m")
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert choice["message"]["role"] == "assistant"
    prompt = (await client.post("/tokenize", {"messages": [{"role": "user", "content": "hello"}]})).json
    assert body["usage"] == {
        "prompt_tokens": prompt["count"],
        "completion_tokens": 7,
        "total_tokens": prompt["count"] + 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_stream_carries_the_same_text(client: Any) -> None:
    whole = (await client.chat(max_tokens=7)).json["choices"][0]["message"]["content"]
    events = (await client.chat(max_tokens=7, stream=True)).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(events) == whole
    assert finish_reasons(events) == ["length"]
    assert all("usage" not in event for event in events)
    assert len({event["id"] for event in events}) == 1


async def test_usage_comes_last_and_only_if_asked_for(client: Any) -> None:
    events = (await client.chat(max_tokens=3, stream=True, stream_options={"include_usage": True})).events
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 3
    assert all("usage" not in event for event in events[:-1])


async def test_continuous_usage_counts_along(client: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = (await client.complete(max_tokens=3, stream=True, stream_options=options)).events
    assert [event["usage"]["completion_tokens"] for event in events] == [1, 2, 3, 3]


async def test_a_repeated_prompt_is_cached(client: Any) -> None:
    text = "the same long question about trams and lines and stations"
    first = (await client.chat(text, max_tokens=2)).json["usage"]
    second = (await client.chat(text, max_tokens=2)).json["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    expected = (second["prompt_tokens"] - 1) // 4 * 4
    assert second["prompt_tokens_details"]["cached_tokens"] == expected


async def test_token_ids_go_on_as_they_would_have(client: Any) -> None:
    whole = (await client.complete("tell me", max_tokens=20, return_token_ids=True)).json["choices"][0]
    prompt, answer = whole["prompt_token_ids"], whole["token_ids"]
    rest = await client.complete([*prompt, *answer[:9]], max_tokens=11, return_token_ids=True)
    assert rest.json["choices"][0]["token_ids"] == answer[9:]
    assert rest.json["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(prompt) + 8) // 4 * 4


async def test_several_answers_differ_and_are_counted_together(client: Any) -> None:
    asked = {"max_tokens": 6, "n": 3, "temperature": 1.0, "seed": 5}
    body = (await client.chat(**asked)).json
    contents = [choice["message"]["content"] for choice in body["choices"]]
    assert len(set(contents)) == 3
    assert body["usage"]["completion_tokens"] == 18
    events = (await client.chat(**asked, stream=True)).events
    assert [text_of(events, index) for index in range(3)] == contents
    assert finish_reasons(events) == ["length"] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it(client: Any, stream: bool) -> None:
    whole = (await client.complete(max_tokens=12)).json["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    expected = whole[: whole.index(stop)]
    answer = await client.complete(max_tokens=12, stop=[stop, "never"], stream=stream)
    if stream:
        assert text_of(answer.events) == expected
        choice: Any = answer.events[-1]["choices"][0]
    else:
        choice = answer.json["choices"][0]
        assert choice["text"] == expected
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert client.server.state.runner.model.idle


async def test_the_stop_string_is_kept_if_asked_for(client: Any) -> None:
    whole = (await client.complete(max_tokens=12)).json["choices"][0]["text"]
    stop = whole[len(whole) // 2 :][:3]
    body = (await client.complete(max_tokens=12, stop=stop, include_stop_str_in_output=True)).json
    assert body["choices"][0]["text"] == whole[: whole.index(stop) + len(stop)]


async def test_a_stop_string_may_begin_in_the_least_tokens(client: Any) -> None:
    events = (await client.complete(max_tokens=24, stream=True)).events
    pieces = [event["choices"][0]["text"] for event in events]
    border = next(n for n in range(4, 24) if pieces[n - 1] and pieces[n] and "\ufffd" not in pieces[n - 1] + pieces[n])
    before, stop = "".join(pieces[:border]), pieces[border - 1][-1] + pieces[border][0]
    choice = (await client.complete(max_tokens=24, min_tokens=border, stop=stop)).json["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (before[:-1], "stop", stop)
    as_long = (await client.complete(max_tokens=border, min_tokens=border, stop=stop)).json["choices"][0]
    assert (as_long["text"], as_long["finish_reason"]) == (before, "length")


async def test_prompts_may_be_lists_and_token_ids(client: Any) -> None:
    tokens = (await client.post("/tokenize", {"prompt": "abc def"})).json["tokens"]
    alone = [(await client.complete(text, max_tokens=3)).json["choices"][0]["text"] for text in ("abc def", "xyz")]
    assert (await client.complete(tokens, max_tokens=3)).json["choices"][0]["text"] == alone[0]
    both = (await client.complete(["abc def", "xyz"], max_tokens=3)).json
    assert [choice["text"] for choice in both["choices"]] == alone
    assert both["usage"]["completion_tokens"] == 6
    nested = (await client.complete([tokens, tokens], max_tokens=3, n=2, temperature=1)).json
    assert [choice["index"] for choice in nested["choices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_is_echoed_and_token_ids_returned(client: Any, stream: bool) -> None:
    tokens = (await client.post("/tokenize", {"prompt": "abc def"})).json["tokens"]
    answer = await client.complete("abc def", max_tokens=2, echo=True, return_token_ids=True, stream=stream)
    if stream:
        assert text_of(answer.events).startswith("abc def")
        choices: list[Any] = [event["choices"][0] for event in answer.events]
        out = [token for choice in choices for token in choice["token_ids"] or []]
        prompts = [choice["prompt_token_ids"] for choice in choices if choice["prompt_token_ids"] is not None]
        assert prompts == [tokens]
    else:
        choice = answer.json["choices"][0]
        assert choice["text"].startswith("abc def")
        out = choice["token_ids"]
        assert choice["prompt_token_ids"] == tokens
    again = (await client.post("/detokenize", {"tokens": tokens + out})).json["prompt"]
    assert again.startswith("abc def")
    assert len(out) == 2


async def test_the_request_id_becomes_the_answers_id(client: Any) -> None:
    body = {"prompt": "x", "max_tokens": 1}
    answer = await client.post("/v1/completions", body, {"X-Request-Id": "abc"})
    assert answer.json["id"] == "cmpl-abc"


@pytest.mark.parametrize(
    ("fields", "status", "message", "param"),
    [
        ({"model": "other"}, 404, "The model `other` does not exist.", "model"),
        ({"prompt": "word " * 600}, 400, "maximum context length is 512 tokens", "input_tokens"),
        ({"max_tokens": 512}, 400, "is too large: 512", "max_tokens"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1, got 0", "max_tokens"),
        ({"max_tokens": "x"}, 400, "Expected `int | null`, got `str`", "max_tokens"),
        ({"n": 0}, 400, "n must be between 1 and 128, got 0", "n"),
        ({"stop": [""]}, 400, "empty string", "stop"),
        ({"prompt": []}, 400, "cannot be empty", "prompt"),
        ({"prompt": [1, "x"]}, 400, "prompt must be a string", "prompt"),
        ({"prompt": [10**7]}, 400, "Token id 10000000 is out of vocabulary", "prompt"),
        ({"stream_options": {"include_usage": True}}, 400, "stream=True", "stream_options"),
        ({"temperature": -1}, 400, "temperature must be at least 0, got -1", "temperature"),
        ({"temperature": "hot"}, 400, "Expected `float | null`", "temperature"),
        ({"top_p": 0}, 400, "top_p must be above 0 and at most 1, got 0", "top_p"),
        ({"top_k": -2}, 400, "top_k must be at least -1, got -2", "top_k"),
        ({"min_p": 1.5}, 400, "min_p must be at least 0 and at most 1", "min_p"),
        ({"frequency_penalty": 3}, 400, "frequency_penalty must be at least -2 and at most 2", "frequency_penalty"),
        ({"repetition_penalty": 0}, 400, "repetition_penalty must be above 0", "repetition_penalty"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias has 'x'", "logit_bias"),
        ({"logit_bias": {"10000000": 1}}, 400, "no token id of this model", "logit_bias"),
        ({"logprobs": 21}, 400, "logprobs must be between 0 and 20, got 21", "logprobs"),
        ({"min_tokens": 17}, 400, "min_tokens must be between 0 and max_tokens=16", "min_tokens"),
        ({"stop_token_ids": [-1]}, 400, "Token id -1 is out of vocabulary", "stop_token_ids"),
        ({"kv_transfer_params": 7}, 400, "Expected `object | null`", "kv_transfer_params"),
        ({"prompt": [-1, 3]}, 400, "Token id -1 is out of vocabulary", "prompt"),
        ({"prompt": [10**400]}, 400, "Expected `int` <= 9223372036854775807", "prompt[0]"),
        ({"top_k": 10**400}, 400, "Expected `int` <= 9223372036854775807", "top_k"),
        ({"top_k": -(10**400)}, 400, "Expected `int` >= -9223372036854775808", "top_k"),
        ({"max_tokens": 10**4000}, 400, "Expected `int` <= 9223372036854775807", "max_tokens"),
        ({"seed": 2**63}, 400, "Expected `int` <= 9223372036854775807", "seed"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "no token id of this model", "logit_bias"),
    ],
)
async def test_bad_requests_have_vllms_error_shape(
    client: Any, fields: dict[str, object], status: int, message: str, param: str
) -> None:
    answer = await client.post("/v1/completions", {"model": "m", "prompt": "x", **fields})
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (status, status, param)
    assert message in error["message"]
    assert error["type"] == ("NotFoundError" if status == 404 else "BadRequestError")


async def test_broken_json_and_missing_fields_are_400(client: Any) -> None:
    answer = await client.post("/v1/chat/completions", b"{nope")
    assert (answer.status, "not JSON" in answer.text) == (400, True)
    answer = await client.post("/v1/chat/completions", {"model": "m"})
    assert (answer.status, "missing required field `messages`" in answer.text) == (400, True)
    answer = await client.chat(top_logprobs=3)
    assert (answer.status, "`logprobs` must be set to true" in answer.text) == (400, True)


async def test_the_official_client_is_content(client: Any) -> None:
    async with openai.AsyncOpenAI(base_url=client.server.url + "/v1", api_key="none", max_retries=0) as official:
        messages: Any = [{"role": "user", "content": "hello"}]
        options: Any = {"include_usage": True}
        exact: Any = {"ignore_eos": True}
        whole = await official.chat.completions.create(
            model="m",
            messages=messages,
            max_tokens=5,
            seed=3,
            logprobs=True,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
            extra_body=exact,
        )
        assert whole.usage is not None
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (5, "length")
        stream = await official.chat.completions.create(
            model="m",
            messages=messages,
            max_completion_tokens=5,
            stream=True,
            stream_options=options,
            extra_body=exact,
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        with pytest.raises(openai.NotFoundError):
            await official.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            await official.completions.create(model="m", prompt=[5] * 600)
