"""Events of a stream that may go on elsewhere: cut apart, read as far as that needs, written anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pointsman.edge.wire.sse import event_data

_EVENT_END = re.compile(rb"\n\r?\n")
DONE = b"data: [DONE]\n\n"
_MOST_WORDS = 500
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
"""What no engine has for one makes an event unreadable, and the stream one that can't go on exactly."""


class Function(msgspec.Struct, gc=False):
    """A piece of a call."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, gc=False):
    """A piece of one tool call; its `id` is another one each time that it is generated."""

    index: int = 0
    function: Function | None = None


class Delta(msgspec.Struct, gc=False):
    """A piece of a chat's answer."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct, gc=False):
    """A piece of one answer."""

    index: int = 0
    text: str | None = None
    delta: Delta | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    prompt_token_ids: list[TokenId] | None = None


class Head(msgspec.Struct, gc=False):
    """What a stream calls itself, in each of its events."""

    id: str | int | None = None
    created: int | float | str | None = None
    model: str | None = None


class Event(msgspec.Struct, gc=False):
    """One event of a chat's or a completion's stream, without its head."""

    choices: list[Choice] | None = None
    prompt_token_ids: list[TokenId] | None = None


class ErrorDetails(msgspec.Struct):
    """What an error event says."""

    message: str = ""
    code: int | str | None = None


class _ErrorEvent(msgspec.Struct):
    error: ErrorDetails | str | None = None
    object: str | None = None
    message: str | None = None
    code: int | str | None = None


_events = msgspec.json.Decoder(Event)
_heads = msgspec.json.Decoder(Head)
_many = msgspec.json.Decoder(list[Event])
_errors = msgspec.json.Decoder(_ErrorEvent)


def split_events(block: bytes) -> list[bytes]:
    """Whole events, each with its blank line."""
    events: list[bytes] = []
    at = 0
    for ending in _EVENT_END.finditer(block):
        events.append(block[at : ending.end()])
        at = ending.end()
    if at < len(block):
        events.append(block[at:])
    return events


def read_event(event: bytes) -> Event | None:
    """As far as it is one of an answer; None for comments, the end and what can't be read."""
    data = event_data(event)
    if not data or data.strip() == b"[DONE]":
        return None
    try:
        return _events.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None


def read_head(block: bytes) -> Head | None:
    """Of the first event of an answer in a block; None where there is none."""
    for event in split_events(block):
        if read_event(event) is not None:
            try:
                return _heads.decode(event_data(event))
            except msgspec.MsgspecError:
                return Head()
    return None


def read_events(block: bytes) -> Sequence[Event | None]:
    """All events of an answer in a block of whole ones; None: one that can't be read."""
    if block.startswith(b"data: ") and block.endswith(b"\n\n") and b"[DONE]" not in block:
        # Engines write all alike, so most blocks are one JSON array but for the words between.
        try:
            return _many.decode(b"[%b]" % block[6:-2].replace(b"\n\ndata: ", b","))
        except (msgspec.MsgspecError, RecursionError):
            pass
    return [read_event(event) for event in split_events(block) if says_something(event)]


def says_something(event: bytes) -> bool:
    """It is no comment, and not the end."""
    return event_data(event).strip() not in (b"", b"[DONE]")


def read_whole(event: bytes) -> dict[str, Any] | None:
    """All of it; None for comments, the end and what is no JSON object."""
    data = event_data(event)
    if not data or data.strip() == b"[DONE]":
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def failure_of(event: bytes) -> str | None:
    """What an event says of the engine's failure; None if it says nothing of one, or blames the request."""
    data = event_data(event)
    if b'"abort"' in data:
        read = read_event(event)
        if read is not None and any(choice.finish_reason == "abort" for choice in read.choices or ()):
            return "the engine aborted it"
    if b"error" not in event:
        return None
    try:
        found = _errors.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    error = found.error
    if error is None and found.object != "error":
        return "the engine sent an error event" if event.startswith(b"event: error") else None
    code = error.code if isinstance(error, ErrorDetails) else found.code
    if isinstance(code, int) and 400 <= code < 500:
        return None
    return "the engine sent an error event"


def words_of(event: bytes) -> str:
    """What an error event says, as far as a person would read it."""
    try:
        found = _errors.decode(event_data(event))
    except (msgspec.MsgspecError, RecursionError):
        return ""
    error = found.error
    words = error.message if isinstance(error, ErrorDetails) else error or found.message or ""
    return words[:_MOST_WORDS]
