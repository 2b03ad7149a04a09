"""A plain answer as the stream that its client asked for: where a leg that is not streamed answered everything."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pointsman.edge.engines.handover.protocol import HandOverError
from pointsman.edge.wire.members import edited, joined, members

STREAM_TYPE = b"text/event-stream; charset=utf-8"
_DONE = b"data: [DONE]\n\n"
_OBJECTS = {b'"chat.completion"': b'"chat.completion.chunk"'}
_NOT_IN_EVENTS = ("prompt_token_ids", "prompt_logprobs", "service_tier", "usage")


class _ToolCalls(msgspec.Struct):
    tool_calls: list[Raw] | UnsetType | None = UNSET


_list = msgspec.json.Decoder(list[Raw])
_calls = msgspec.json.Decoder(_ToolCalls)


def as_stream(answer: bytes, *, usage: bool) -> bytes:
    """Events with all that a plain answer has: one with the choices, one with the usage if asked for, `[DONE]`.

    Raises HandOverError where it is no answer of a completion or a chat.
    """
    try:
        parts = members(answer)
        choices = [_as_event(bytes(choice)) for choice in _list.decode(parts["choices"])]
    except (ValueError, KeyError, msgspec.MsgspecError, RecursionError) as error:
        raise HandOverError(f"the prefill leg's answer can't be told as a stream: {error}") from None
    head: dict[str, Raw | bytes] = {name: value for name, value in parts.items() if name not in _NOT_IN_EVENTS}
    if "object" in head:
        head["object"] = _OBJECTS.get(bytes(head["object"]), bytes(head["object"]))
    if usage:
        head["usage"] = b"null"
    events = [joined({**head, "choices": b"[%b]" % b",".join(choices)})]
    if usage and "usage" in parts:
        events.append(joined({**head, "choices": b"[]", "usage": parts["usage"]}))
    return b"".join(b"data: %b\n\n" % event.replace(b"\r", b"").replace(b"\n", b"") for event in events) + _DONE


def _as_event(choice: bytes) -> bytes:
    """A chat's message is a delta in a stream, and its tool calls are numbered."""
    parts: dict[str, Raw | bytes] = dict(members(choice))
    if "message" not in parts:
        return choice
    message = bytes(parts["message"])
    calls = _calls.decode(message).tool_calls
    if isinstance(calls, list):
        numbered = [edited(bytes(call), {"index": b"%d" % place}) for place, call in enumerate(calls)]
        message = edited(message, {"tool_calls": b"[%b]" % b",".join(numbered)})
    return joined(
        {("delta" if name == "message" else name): value for name, value in {**parts, "message": message}.items()}
    )
