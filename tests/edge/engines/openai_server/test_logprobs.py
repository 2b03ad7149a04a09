from __future__ import annotations

import math
from typing import Any

from pointsman.edge.engines.embedded.tiny_text import tiny_text
from pointsman.edge.engines.openai_server.logprobs import shown_logprobs
from pointsman.edge.engines.openai_server.sampling import Chosen

TEXT = tiny_text()


def token(text: str) -> int:
    (found,) = TEXT.encode(text)
    return found


def test_the_token_that_completes_a_character_has_all_of_it() -> None:
    first, last = TEXT.encode("\u00e9")
    chosen = [Chosen(token("a"), -0.5), Chosen(first, -1.0, ((first, -1.0), (last, -2.0))), Chosen(last, -0.25)]
    said: Any = shown_logprobs(TEXT, chat=True).of(chosen)
    assert [entry["token"] for entry in said["content"]] == ["a", "", "\u00e9"]
    assert [entry["bytes"] for entry in said["content"]] == [[97], [], [0xC3, 0xA9]]
    assert [top["token"] for top in said["content"][1]["top_logprobs"]] == ["", ""]
    said = shown_logprobs(TEXT, chat=False).of(chosen)
    assert said["tokens"] == ["a", "", "\u00e9"]
    assert said["text_offset"] == [0, 1, 1]


def test_events_of_a_stream_count_on() -> None:
    shown = shown_logprobs(TEXT, chat=False)
    said: list[Any] = [shown.of([Chosen(token(word), -1.0)]) for word in ("the", " world", "x")]
    assert [one["text_offset"] for one in said] == [[0], [3], [9]]


def test_a_token_that_is_none_of_the_likeliest_is_told_first() -> None:
    chosen = Chosen(token("a"), -3.0, ((token("b"), -0.1), (token("c"), -0.2)))
    said: Any = shown_logprobs(TEXT, chat=False).of([chosen])
    assert list(said["top_logprobs"][0].items()) == [("a", -3.0), ("b", -0.1), ("c", -0.2)]


def test_what_can_not_come_has_a_number_that_json_knows() -> None:
    said: Any = shown_logprobs(TEXT, chat=True).of([Chosen(token("a"), -math.inf)])
    assert said["content"][0]["logprob"] == -9999.0
