"""A plain answer told as a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pointsman.edge.engines.handover.as_stream import as_stream
from pointsman.edge.engines.handover.protocol import HandOverError

USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
HEAD = {"id": "c-1", "created": 5, "model": "m"}


def events(stream: bytes) -> list[Any]:
    parts = stream.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def test_a_chat_s_message_is_a_delta_and_its_calls_are_numbered() -> None:
    calls = [{"id": "1", "function": {"name": "f"}}, {"id": "2", "function": {"name": "g"}}]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a", "tool_calls": calls},
        "finish_reason": "stop",
    }
    answer = {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    numbered = [call | {"index": place} for place, call in enumerate(calls)]
    delta = {"role": "assistant", "content": "a", "tool_calls": numbered}
    head = {**HEAD, "object": "chat.completion.chunk"}
    assert events(as_stream(json.dumps(answer, indent=1).encode(), usage=True)) == [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}], "usage": None},
        {**head, "choices": [], "usage": USAGE},
    ]


def test_a_completion_is_its_own_event_and_usage_is_told_only_where_it_was_asked_for() -> None:
    answer = {**HEAD, "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
    said = json.dumps(answer | {"usage": USAGE}).encode()
    assert events(as_stream(said, usage=False)) == [answer]


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"choices":1}', b'{"choices":[1]}'])
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(HandOverError, match="can't be told as a stream"):
        as_stream(answer, usage=True)
