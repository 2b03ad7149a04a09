"""Messages as vLLM 0.32 hands them to its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pointsman.edge.prompts.content_format import ContentFormat
from pointsman.edge.prompts.message_parts import MEDIA_TYPES, Message, read_part, unusual

_PART_MEMBERS = {
    *MEDIA_TYPES,
    *["closed", "data", "file", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"],
}
"""Members of parts that vLLM knows; the template gets the others as they are."""
_CHANGING_HEADER = "x-anthropic-billing-header"


def vllm_message(message: Message, contents: ContentFormat) -> tuple[Message, int | None]:
    """What the template gets for a message, and the place of its first media part. Raises NotTokenizable."""
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = _without_changing_header(parts)
    content, media_part = (_as_parts if contents is ContentFormat.PARTS else _as_string)(parts)
    result: Message = {"role": role, "content": content}
    if role == "assistant":
        _add_tool_calls(result, message)
        reasoning = message.get("reasoning")
        if reasoning is None:
            reasoning = message.get("reasoning_content")
        if reasoning is not None:
            result["reasoning"] = result["reasoning_content"] = reasoning
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if isinstance(content, list) and all(part.get("type") == "text" for part in content):
            result["content"] = "\n".join(str(part["text"]) for part in content)
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = message.get("tools")
    return result, media_part


def _parts(content: object) -> list[object]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return content
    raise unusual("content: expected a string or an array of parts")


def _as_string(parts: Sequence[object]) -> tuple[str, int | None]:
    texts = []
    has_media = False
    for part in parts:
        kind, text = read_part(part)
        if kind is None:
            texts.append(text)
        else:
            has_media = True
    return "\n".join(text for text in texts if text), 0 if has_media else None


def _as_parts(parts: Sequence[object]) -> tuple[list[Message], int | None]:
    result: list[Message] = []
    media_part: int | None = None
    for part in parts:
        kind, text = read_part(part)
        if kind is None:
            result.append({"type": "text", "text": text, **_extra_members(part)})
        else:
            media_part = len(result) if media_part is None else media_part
            result.append({"type": kind, **_extra_members(part)})
    return result, media_part


def _extra_members(part: object) -> Message:
    if not isinstance(part, dict):
        return {}
    return {name: value for name, value in part.items() if name not in _PART_MEMBERS}


def _without_changing_header(parts: Sequence[object]) -> list[object]:
    """vLLM drops a system text's first line that some coding clients change with every request."""
    kept: list[object] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not (isinstance(text, str) and text.startswith(_CHANGING_HEADER)):
            kept.append(part)
            continue
        rest = text.partition("\n")[2]
        if rest:
            kept.append({**part, "text": rest} if isinstance(part, dict) else rest)
    return kept


def _add_tool_calls(result: Message, message: Message) -> None:
    calls = message.get("tool_calls")
    if calls is None or calls == []:
        return
    if not isinstance(calls, list):
        raise unusual("tool_calls: expected an array")
    result["tool_calls"] = [_tool_call(call) for call in calls]


def _tool_call(call: object) -> Message:
    """Members in the order that vLLM's types have; unknown ones after them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not (isinstance(call, dict) and isinstance(function, dict) and call.get("type") == "function"):
        raise unusual("tool_calls: expected objects of type function")
    arguments = function.get("arguments")
    if not (isinstance(call.get("id"), str) and isinstance(function.get("name"), str) and isinstance(arguments, str)):
        raise unusual("tool_calls: expected an id, a function's name, and arguments as a string")
    ordered = {"arguments": _arguments(arguments), "name": function["name"]}
    return {
        "id": call["id"],
        "function": ordered | _others(function, ordered),
        "type": "function",
        **_others(call, ("id", "function", "type")),
    }


def _others(members: Mapping[str, object], known: Mapping[str, object] | tuple[str, ...]) -> Message:
    return {name: value for name, value in members.items() if name not in known}


def _arguments(text: str) -> dict[str, object]:
    """vLLM goes on with an empty object where the arguments are none."""
    try:
        arguments = json.loads(text) if text else {}
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}
