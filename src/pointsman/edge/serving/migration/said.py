"""Said: what a client has got of one answer, as text by channel and as token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from sys import getsizeof

import msgspec

from pointsman.edge.serving.migration.sse_events import Choice, Event, Head

Channel = tuple[str, int]
"""Where a piece of text belongs: (`content`, 0), (`text`, 0), or (`arguments`, 1) of the second tool call."""
CONTENT, TEXT = ("content", 0), ("text", 0)
_CHANNEL_BYTES = 200


class _ChatLogprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None
    """Of a chat."""
    tokens: list[str] | None = None
    """Of a completion, as the next."""
    text_offset: list[int] | None = None


_logprobs = msgspec.json.Decoder(_ChatLogprobs | None)


@dataclass(slots=True)
class Said:
    """Of one answer, up to its last whole event."""

    events: int = 0
    pieces: dict[Channel, list[str]] = field(default_factory=dict)
    prompt_ids: list[int] | None = None
    ids: array[int] = field(default_factory=lambda: array("I"))
    """Of the answer; worth nothing unless `ids_known`."""
    ids_known: bool = True
    """Each piece came with the ids of its tokens."""
    head: Head | None = None
    """What the stream calls itself."""
    role: bool = False
    """The speaker was named."""
    logprobs: int = 0
    """Tokens whose logprobs were told."""
    text_offset: int = 0
    """Where the next token would begin, as logprobs count it."""
    finish_reason: str | None = None
    last: Channel | None = None
    """Where the last piece belonged."""
    last_tokens: int = 0
    """Tokens of the last event that had ids."""
    last_empty: bool = False
    """That event had no text."""
    last_plain: bool = False
    """That event was of plain text, as far as it had any: not of reasoning, nor swallowed by a parser."""
    unreadable: bool = False
    """The client got something of which nobody knows what it says."""
    size_bytes: int = 0
    """About what is kept, without ids."""
    _packed: dict[Channel, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """One more event that the client got."""
        self.events += 1
        choices = event.choices
        if choices and len(choices) == 1 and self._add_plain(choices[0]):
            return
        if event.prompt_token_ids is not None:
            self.prompt_ids = event.prompt_token_ids
        for choice in event.choices or ():
            self._add_choice(choice)

    def _add_plain(self, choice: Choice) -> bool:
        """Most events: one piece of content or text, and nothing else that is new."""
        delta, text, ids = choice.delta, choice.text, choice.token_ids
        channel = TEXT
        if delta is not None:
            if delta.reasoning is not None or delta.reasoning_content is not None or delta.tool_calls is not None:
                return False
            text, channel = delta.content, CONTENT
        if not text or choice.finish_reason is not None or bytes(choice.logprobs) != b"null":
            return False
        if choice.prompt_token_ids is not None or (delta is not None and delta.role is not None):
            return False
        if self.last is not channel:
            return False
        self.pieces[channel].append(text)
        if ids is None:
            self.ids_known = False
        else:
            if len(ids) == 1:  # extend() costs several times as much
                self.ids.append(ids[0])
            else:
                self.ids.extend(ids)
            self.last_tokens, self.last_empty, self.last_plain = len(ids), False, True
        return True

    def pack(self) -> None:
        """Text since the last time becomes one piece of each channel: a string of its own costs 50 bytes a token."""
        for channel, texts in self.pieces.items():
            packed = self._packed.get(channel, 0)
            if len(texts) > packed:
                texts[packed:] = ["".join(texts[packed:])]
                self._packed[channel] = packed + 1
                self.size_bytes += getsizeof(texts[-1]) + (0 if packed else _CHANNEL_BYTES)

    def text(self, channel: Channel) -> str:
        """All of one channel."""
        return "".join(self.pieces.get(channel, ()))

    @property
    def anything(self) -> bool:
        """The client got more than the name of the speaker."""
        return bool(self.pieces or self.ids or self.finish_reason or self.logprobs)

    def _add_choice(self, choice: Choice) -> None:
        if choice.prompt_token_ids is not None:
            self.prompt_ids = choice.prompt_token_ids
        length = 0
        for channel, text in pieces_of(choice):
            if text:
                self.pieces.setdefault(channel, []).append(text)
                self.last = channel
                length += len(text)
        if choice.delta is not None and choice.delta.role is not None:
            self.role = True
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        if choice.token_ids is not None:
            self.ids.extend(choice.token_ids)
            self.last_tokens, self.last_empty = len(choice.token_ids), not length
            self.last_plain = choice.text is not None or _is_plain(choice)
        elif length:
            self.ids_known = False
        if bytes(choice.logprobs) != b"null":
            self._add_logprobs(choice.logprobs)

    def _add_logprobs(self, raw: msgspec.Raw) -> None:
        try:
            told = _logprobs.decode(raw)
        except msgspec.MsgspecError:
            return
        if told is None:
            return
        self.logprobs += len(told.content or told.tokens or ())
        if told.tokens and told.text_offset:
            self.text_offset = told.text_offset[-1] + len(told.tokens[-1])


def pieces_of(choice: Choice) -> Iterator[tuple[Channel, str]]:
    """The text of one event, by channel."""
    if choice.text is not None:
        yield TEXT, choice.text
    delta = choice.delta
    if delta is None:
        return
    if delta.reasoning_content is not None:
        yield ("reasoning_content", 0), delta.reasoning_content
    if delta.reasoning is not None:
        yield ("reasoning", 0), delta.reasoning
    if delta.content is not None:
        yield CONTENT, delta.content
    if delta.refusal is not None:
        yield ("refusal", 0), delta.refusal
    for call in delta.tool_calls or ():
        if call.function is None:
            continue
        if call.function.name is not None:
            yield ("name", call.index), call.function.name
        if call.function.arguments is not None:
            yield ("arguments", call.index), call.function.arguments


def _is_plain(choice: Choice) -> bool:
    delta = choice.delta
    return delta is not None and delta.content is not None and not delta.reasoning and not delta.reasoning_content
