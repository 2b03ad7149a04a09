"""What a simulated engine answers; what it has in common with others is tested in `openai_server`."""

from __future__ import annotations

from typing import Any

from support.engine_client import finish_reasons, text_of


async def test_an_answer_is_short_words(client: Any) -> None:
    body = (await client.chat(max_tokens=7)).json
    assert len(body["choices"][0]["message"]["content"].split()) == 7


async def test_a_stream_carries_the_same_text_token_by_token(client: Any) -> None:
    whole = (await client.chat(max_tokens=7)).json["choices"][0]["message"]["content"]
    events = (await client.chat(max_tokens=7, stream=True)).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(events) == 8
    assert text_of(events) == whole
    assert finish_reasons(events) == ["length"]
    assert all("usage" not in event for event in events)
    assert len({event["id"] for event in events}) == 1


async def test_the_next_turn_finds_the_whole_last_one_cached(client: Any) -> None:
    messages = [{"role": "user", "content": "first question"}]
    first = (await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12})).json
    messages += [first["choices"][0]["message"], {"role": "user", "content": "second question"}]
    second = (await client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})).json
    computed = first["usage"]["total_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == computed // 4 * 4


async def test_a_continuation_from_the_answer_so_far_goes_on_with_the_same_text(client: Any) -> None:
    whole = (await client.complete("tell me", max_tokens=20)).json["choices"][0]["text"]
    beginning = " ".join(whole.split(" ")[:9])
    rest = (await client.complete("tell me" + beginning, max_tokens=12)).json["choices"][0]["text"]
    assert beginning + rest == whole


async def test_without_a_limit_the_answer_ends_itself(client: Any) -> None:
    body = (await client.chat()).json
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == client.server.settings.default_output_tokens
    short = (await client.complete()).json
    assert short["usage"]["completion_tokens"] == 16


async def test_an_adapter_is_a_model_of_its_own(start_sim: Any, client_of: Any) -> None:
    client = client_of(await start_sim(loras=("ad",)))
    prompt = "a prompt long enough to fill several blocks"
    await client.complete(prompt, max_tokens=1)
    other = (await client.complete(prompt, max_tokens=1, model="ad")).json
    assert other["model"] == "ad"
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cards = (await client.get("/v1/models")).json["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [("m", None), ("ad", "m")]
    assert cards[0]["max_model_len"] == 512
