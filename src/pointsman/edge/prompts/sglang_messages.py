"""Messages as SGLang 0.5.23 hands them to its chat template."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pointsman.edge.prompts.content_format import ContentFormat
from pointsman.edge.prompts.message_parts import Message, read_part, unusual

_TEXT_TYPES = ("text", "input_text")
_MEMBERS = (
    "role",
    "content",
    "tool_call_id",
    "name",
    "phase",
    "reasoning_content",
    "tool_calls",
    "tools",
    "prefix",
)
_ROLES = ("system", "assistant", "tool", "function", "developer")


def sglang_message(message: Message, contents: ContentFormat) -> tuple[Message, int | None]:
    """What the template gets for a message, and the place of its first media part. Raises NotTokenizable."""
    role = str(message["role"]).lower()
    if role != "user" and role not in _ROLES:
        raise unusual(f"role {role!r}: SGLang knows it not")
    members = ("role", "content") if role == "user" else _MEMBERS
    result = {name: message[name] for name in members if message.get(name) is not None}
    result["role"] = role
    if result.get("tools"):
        raise unusual("tools inside a message")
    if "tool_calls" in result:
        calls = result["tool_calls"]
        if not isinstance(calls, list):
            raise unusual("tool_calls: expected an array")
        result["tool_calls"] = [_tool_call(call, role) for call in calls]
    content = message.get("content")
    if not isinstance(content, list):
        result["content"] = "" if content is None else content
        return result, None
    converted, media_part = _content(content, contents)
    if role == "tool" and isinstance(converted, list) and all(part.get("type") == "text" for part in converted):
        converted = " ".join(str(part["text"]) for part in converted)
    result["content"] = converted
    return result, media_part


def _content(parts: Sequence[object], contents: ContentFormat) -> tuple[list[Message] | str, int | None]:
    result: list[Message] = []
    media_part: int | None = None
    for part in parts:
        kind, text = read_part(part)
        named = part.get("type") if isinstance(part, dict) else None
        if kind is None and named in _TEXT_TYPES:
            result.append({"type": "text", "text": text})
        elif kind is not None:
            media_part = len(result) if media_part is None else media_part
            result.append({"type": kind})
    if contents is ContentFormat.PARTS:
        return result, media_part
    texts = [str(part["text"]) for part in result if part["type"] == "text"]
    return " ".join(texts), None if media_part is None else 0


def _tool_call(call: object, role: str) -> Message:
    """Members in the order that SGLang's types have, absent ones as None."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise unusual("tool_calls: expected objects with a function")
    arguments = function.get("arguments")
    if role == "assistant" and isinstance(arguments, str):
        arguments = _strict_arguments(arguments)
    return {
        "id": call.get("id"),
        "index": call.get("index"),
        "type": call.get("type", "function"),
        "function": {"name": function.get("name"), "arguments": arguments},
    }


def _strict_arguments(text: str) -> dict[str, object]:
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise unusual("tool_calls: arguments that are no JSON object, which SGLang refuses")
    return arguments


def check_tool_order(messages: Sequence[Message]) -> None:
    """SGLang sorts results of tools where a template matches them with calls. Raises NotTokenizable if it would."""
    expected: list[object] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            expected = [call["id"] for call in calls]
        elif message["role"] == "tool" and expected:
            if message.get("tool_call_id") != expected.pop(0):
                raise unusual("results of tools in another order than their calls, which SGLang sorts")
        else:
            expected = []
