"""Messages of a request as an engine hands them to its chat template.

The template does not see what the client sent: contents become one string or a list of parts, arguments of tool calls
become objects, unknown members go. What follows is what vLLM 0.32 and SGLang 0.5.23 were seen to do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.edge.prompts.content_format import ContentFormat
from pointsman.edge.prompts.message_parts import Message, unusual
from pointsman.edge.prompts.sglang_messages import sglang_message
from pointsman.edge.prompts.vllm_messages import vllm_message


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


def read_conversation(messages: Sequence[object], dialect: Dialect, contents: ContentFormat) -> Conversation:
    """Raises NotTokenizable where an engine would refuse a message, or where it is not known what it makes of it."""
    read = vllm_message if dialect is Dialect.VLLM else sglang_message
    result: list[Message] = []
    media: Media | None = None
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise unusual(f"messages[{number}]: expected an object with a role")
        converted, media_part = read(message, contents)
        result.append(converted)
        if media is None and media_part is not None:
            media = Media(number, media_part)
    return Conversation(result, media)
