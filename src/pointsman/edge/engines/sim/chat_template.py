"""Renders a chat into token ids, always the same way.

Each message is `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n`; tools come first as a segment of JSON with sorted keys; the
prompt ends with `<|im_start|>assistant\\n`. An answer's tokens followed by `<|im_end|>\\n` are exactly what the next
turn renders for it, so a conversation that goes on keeps its cached prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.requests import Message
from pointsman.edge.engines.sim.tokenizer import IM_END, IM_START, SimTokenizer

_sorted_json = msgspec.json.Encoder(order="deterministic")


def render_chat(
    tokenizer: SimTokenizer,
    messages: Sequence[Message],
    tools: Sequence[dict[str, object]] | None = None,
    *,
    open_answer: bool = True,
) -> list[int]:
    """Token ids of a chat; raises `ApiError` for content that is not text."""
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    tokens: list[int] = []
    if tools:
        _segment(tokenizer, tokens, f"tools\n{_sorted_json.encode(list(tools)).decode()}")
    for number, message in enumerate(messages):
        _segment(tokenizer, tokens, f"{message.role}\n{_content(message, number)}")
    if open_answer:
        tokens.append(IM_START)
        tokens += tokenizer.encode("assistant\n")
    return tokens


def _segment(tokenizer: SimTokenizer, tokens: list[int], text: str) -> None:
    tokens.append(IM_START)
    tokens += tokenizer.encode(text)
    tokens.append(IM_END)
    tokens += tokenizer.encode("\n")


def _content(message: Message, number: int) -> str:
    if isinstance(message.content, str):
        text = message.content
    else:
        parts = message.content or []
        unknown = next((part.type for part in parts if part.type != "text"), None)
        if unknown is not None:
            raise bad_request(
                f"messages[{number}].content: parts of type {unknown!r} are not supported by this model, only text.",
                "messages",
            )
        text = "".join(part.text or "" for part in parts)
    if message.tool_calls:
        text += _sorted_json.encode(message.tool_calls).decode()
    return text
