from __future__ import annotations

import pytest

from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.openai_server.requests import ContentPart, Message
from pointsman.edge.engines.sim.chat_template import render_chat
from pointsman.edge.engines.sim.tokenizer import IM_END, SimTokenizer

tokenizer = SimTokenizer()
USER = Message("user", "where does the tram go?")


def test_a_chat_is_rendered_segment_by_segment() -> None:
    text = tokenizer.decode(render_chat(tokenizer, [Message("system", "be brief"), USER]))
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nwhere does the tram go?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_next_turn_begins_with_the_whole_last_one() -> None:
    answer = list(tokenizer.output_ids[:9])
    first = render_chat(tokenizer, [USER])
    turns = [USER, Message("assistant", tokenizer.decode(answer)), Message("user", "and then?")]
    second = render_chat(tokenizer, turns)
    assert second[: len(first) + 10] == [*first, *answer, IM_END]


def test_text_parts_equal_plain_text_and_tools_change_the_prompt() -> None:
    parts = Message("user", [ContentPart("text", "where does the "), ContentPart("text", "tram go?")])
    assert render_chat(tokenizer, [parts]) == render_chat(tokenizer, [USER])
    one = render_chat(tokenizer, [USER], [{"type": "function", "name": "f"}])
    other_order = render_chat(tokenizer, [USER], [{"name": "f", "type": "function"}])
    assert one == other_order != render_chat(tokenizer, [USER])


def test_tool_calls_and_empty_content_are_rendered() -> None:
    call = Message("assistant", None, tool_calls=[{"id": "1"}])
    assert '{"id":"1"}' in tokenizer.decode(render_chat(tokenizer, [USER, call]))
    assert tokenizer.decode(render_chat(tokenizer, [Message("user")], open_answer=False)) == (
        "<|im_start|>user\n<|im_end|>\n"
    )


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(ApiError, match=r"messages\[1\]\.content: parts of type 'image_url'"):
        render_chat(tokenizer, [USER, Message("user", [ContentPart("image_url")])])
    with pytest.raises(ApiError, match="must not be empty"):
        render_chat(tokenizer, [])
