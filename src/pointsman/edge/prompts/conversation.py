"""Messages of a request as an engine hands them to its chat template.

The template does not see what the client sent: contents become one string or a list of parts, arguments of tool calls
become objects, unknown members go. What follows is what vLLM 0.32 and SGLang 0.5.23 were seen to do.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pointsman.edge.prompts.content_format import ContentFormat
from pointsman.edge.prompts.errors import NotTokenizable, Reason

Message = dict[str, object]


class Dialect(enum.StrEnum):
    """Whose way of reading messages is followed."""

    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class Media:
    """The first part that is no text: from there on, the engine's token ids depend on what it shows."""

    message: int
    part: int
    """Place in the content, if that is a list of parts; 0 where it is a string: its text may come after the media."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the template gets."""

    messages: list[Message]
    media: Media | None = None


_TEXT_TYPES = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Part type → member that holds its text."""
_MEDIA_TYPES = {
    "image_url": "image",
    "input_image": "image",
    "image_embeds": "image",
    "image_pil": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
"""Part type → type under which the template sees it."""
_PART_MEMBERS = {
    *_MEDIA_TYPES,
    *["closed", "data", "file", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"],
}
"""Members of parts that vLLM knows; the template gets the others as they are."""
_CHANGING_HEADER = "x-anthropic-billing-header"


def read_conversation(messages: Sequence[object], dialect: Dialect, contents: ContentFormat) -> Conversation:
    """Raises NotTokenizable where an engine would refuse a message, or where it is not known what it makes of it."""
    read = _vllm_message if dialect is Dialect.VLLM else _sglang_message
    result: list[Message] = []
    media: Media | None = None
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _unusual(f"messages[{number}]: expected an object with a role")
        converted, media_part = read(message, contents)
        result.append(converted)
        if media is None and media_part is not None:
            media = Media(number, media_part)
    return Conversation(result, media)


def _vllm_message(message: Message, contents: ContentFormat) -> tuple[Message, int | None]:
    role = message["role"]
    parts = _parts(message.get("content"))
    if role == "system":
        parts = _without_changing_header(parts)
    content, media_part = (_vllm_parts if contents is ContentFormat.PARTS else _vllm_string)(parts)
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
    raise _unusual("content: expected a string or an array of parts")


def _vllm_string(parts: Sequence[object]) -> tuple[str, int | None]:
    texts = []
    has_media = False
    for part in parts:
        kind, text = _read_part(part)
        if kind is None:
            texts.append(text)
        else:
            has_media = True
    return "\n".join(text for text in texts if text), 0 if has_media else None


def _vllm_parts(parts: Sequence[object]) -> tuple[list[Message], int | None]:
    result: list[Message] = []
    media_part: int | None = None
    for part in parts:
        kind, text = _read_part(part)
        if kind is None:
            result.append({"type": "text", "text": text, **_extra_members(part)})
        elif kind == "tool_reference":
            result.append({"type": kind, "name": text})
        else:
            media_part = len(result) if media_part is None else media_part
            result.append({"type": kind, **_extra_members(part)})
    return result, media_part


def _read_part(part: object) -> tuple[str | None, str]:
    """(None, text) of a text, otherwise (the type that a template sees, "")."""
    if isinstance(part, str):
        return None, part
    if not isinstance(part, dict) or "uuid" in part:
        raise NotTokenizable(Reason.MULTIMODAL, "a content part with a uuid, or none that is an object")
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_TYPES:
        text = part.get(_TEXT_TYPES[kind])
        if not isinstance(text, str):
            raise _unusual(f"a content part of type {kind!r} without a text")
        return None, text
    if isinstance(kind, str) and kind in _MEDIA_TYPES:
        return _MEDIA_TYPES[kind], ""
    raise NotTokenizable(Reason.MULTIMODAL, f"a content part of type {kind!r}")


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
        raise _unusual("tool_calls: expected an array")
    result["tool_calls"] = [_vllm_tool_call(call) for call in calls]


def _vllm_tool_call(call: object) -> Message:
    """Members in the order that vLLM's types have; unknown ones after them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not (isinstance(call, dict) and isinstance(function, dict) and call.get("type") == "function"):
        raise _unusual("tool_calls: expected objects of type function")
    arguments = function.get("arguments")
    if not (isinstance(call.get("id"), str) and isinstance(function.get("name"), str) and isinstance(arguments, str)):
        raise _unusual("tool_calls: expected an id, a function's name, and arguments as a string")
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


_SGLANG_TEXT_TYPES = ("text", "input_text")
_SGLANG_MEMBERS = (
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
_SGLANG_ROLES = ("system", "assistant", "tool", "function", "developer")


def _sglang_message(message: Message, contents: ContentFormat) -> tuple[Message, int | None]:
    role = str(message["role"]).lower()
    if role != "user" and role not in _SGLANG_ROLES:
        raise _unusual(f"role {role!r}: SGLang knows it not")
    members = ("role", "content") if role == "user" else _SGLANG_MEMBERS
    result = {name: message[name] for name in members if message.get(name) is not None}
    result["role"] = role
    if result.get("tools"):
        raise _unusual("tools inside a message")
    if "tool_calls" in result:
        calls = result["tool_calls"]
        if not isinstance(calls, list):
            raise _unusual("tool_calls: expected an array")
        result["tool_calls"] = [_sglang_tool_call(call, role) for call in calls]
    content = message.get("content")
    if not isinstance(content, list):
        result["content"] = "" if content is None else content
        return result, None
    converted, media_part = _sglang_parts(content, contents)
    if role == "tool" and isinstance(converted, list) and all(part.get("type") == "text" for part in converted):
        converted = " ".join(str(part["text"]) for part in converted)
    result["content"] = converted
    return result, media_part


def _sglang_parts(parts: Sequence[object], contents: ContentFormat) -> tuple[list[Message] | str, int | None]:
    result: list[Message] = []
    media_part: int | None = None
    for part in parts:
        kind, text = _read_part(part)
        named = part.get("type") if isinstance(part, dict) else None
        if kind is None and named in _SGLANG_TEXT_TYPES:
            result.append({"type": "text", "text": text})
        elif kind is not None:
            media_part = len(result) if media_part is None else media_part
            result.append({"type": kind})
    if contents is ContentFormat.PARTS:
        return result, media_part
    texts = [str(part["text"]) for part in result if part["type"] == "text"]
    return " ".join(texts), None if media_part is None else 0


def _sglang_tool_call(call: object, role: str) -> Message:
    """Members in the order that SGLang's types have, absent ones as None."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise _unusual("tool_calls: expected objects with a function")
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
        raise _unusual("tool_calls: arguments that are no JSON object, which SGLang refuses")
    return arguments


def _unusual(message: str) -> NotTokenizable:
    return NotTokenizable(Reason.UNUSUAL_FIELD, message)
