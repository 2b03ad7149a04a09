"""ConvertedStream: what another engine generates from token ids, as events that the client's stream goes on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pointsman.edge.serving.breaks import CutShortError, ErrorEventError
from pointsman.edge.serving.migration.said import Said
from pointsman.edge.serving.migration.scanned import ScannedStream
from pointsman.edge.serving.migration.sse_events import (
    DONE,
    failure_of,
    read_whole,
    says_something,
    split_events,
    words_of,
    write_event,
)
from pointsman.edge.serving.migration.stops import SeamStops
from pointsman.edge.serving.migration.strip import without_ids
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.sse import StreamScanner
from pointsman.edge.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Seam:
    """Where one engine's part of an answer ends and the next one's begins."""

    chat: bool
    """The client's stream is a chat's; otherwise a completion's."""
    prompt_tokens: int
    """Of the client's prompt."""
    kept_tokens: int
    """Of the answer, that are part of the prompt of what goes on."""
    held: str
    """Text of those that the client has not got."""
    stops: tuple[str, ...]
    include_stop: bool
    shows_usage: bool
    """The client asked for the usage event."""
    strips: bool
    """The client did not ask for token ids."""


class ConvertedStream(ScannedStream):
    """Reads a completion's stream. One JSON text is read and written for each event: few streams ever get here."""

    __slots__ = ("_ended", "_head", "_offset", "_seam", "_stops", "_tokens", "_usage")

    def __init__(self, transcript: Transcript, seam: Seam, on_fault: Callable[[], None]) -> None:
        super().__init__(StreamScanner(whole_events=True), transcript, on_fault)
        said = transcript.said
        self._offset = said.text_offset
        self._seam = seam
        self._head = head_of(said, chat=seam.chat)
        text = said.text(("content", 0) if seam.chat else ("text", 0))
        self._stops = SeamStops(seam.stops, text, seam.held, include=seam.include_stop)
        self._tokens = seam.kept_tokens
        self._usage: Usage | None = None
        self._ended = False

    @property
    def usage(self) -> Usage | None:
        """Of the whole answer."""
        return self._usage

    @property
    def done(self) -> bool:
        """Nothing more comes."""
        return self._scanner.done or self.complete

    def feed(self, data: bytes) -> bytes:
        """The next bytes; returns the client's events."""
        out = self._scanner.feed(data)
        if not out or self.fault is not None or self.complete:
            return b""
        return b"".join(self._converted(event) for event in split_events(out))

    def flush(self) -> bytes:
        """The stream has ended."""
        self._scanner.flush()
        if not (self.done or self._ended or self.error) and self.fault is None:
            self.fault = CutShortError("its stream ended before its answer did")
        return b""

    def _over(self) -> bool:
        return self.complete or self.fault is not None

    def _converted(self, event: bytes) -> bytes:
        if self._over():
            return b""
        failure = failure_of(event)
        if failure is not None:
            self.fault = ErrorEventError(failure, words_of(event))
            self._on_fault()
            return b""
        value = read_whole(event)
        if value is None:
            if says_something(event):
                self.fault = ErrorEventError("it sent an event that could not be read")
                self._on_fault()
                return b""
            return event
        if "error" in value and not value.get("choices"):
            return event  # the request's own fault, as the engine says
        choices = value.get("choices") or []
        written = self._choice(value, choices[0]) if choices else self._usage_event(value)
        if written is None:
            return b""
        raw = write_event(written)
        self._transcript.add(raw)
        if self._seam.strips:
            raw = without_ids(raw)
        return raw + self._end() if self._over() else raw

    def _choice(self, value: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
        self._tokens += len(choice.get("token_ids") or ())
        reason, stop_reason = choice.get("finish_reason"), choice.get("stop_reason")
        text = self._stops.feed(choice.get("text") or "")
        if self._stops.found is not None:
            reason, stop_reason, self.complete = "stop", self._stops.found, True
        elif reason is not None:
            text += self._stops.flush()
        self._ended = reason is not None
        if self.complete:
            self._on_fault()
        logprobs = choice.get("logprobs")
        if logprobs is not None and not self._seam.chat:
            _shift(logprobs, self._offset)
        piece: dict[str, Any] = {"index": 0}
        if self._seam.chat:
            piece |= {"delta": {"content": text}, "logprobs": logprobs, "finish_reason": reason}
            if reason is not None:
                piece["stop_reason"] = stop_reason
        else:
            piece |= {"text": text, "logprobs": logprobs, "finish_reason": reason, "stop_reason": stop_reason}
            if "prompt_token_ids" in choice:
                piece["prompt_token_ids"] = None
        piece["token_ids"] = choice.get("token_ids")
        return self._whole(value, [piece])

    def _whole(self, value: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        """With the client's own head; usage, which is told in between where the client asked for that, made whole."""
        rest = {key: part for key, part in value.items() if key not in _HEAD}
        if isinstance(rest.get("usage"), dict):
            self._made_whole(rest["usage"])
        return self._head | {"choices": choices} | rest

    def _usage_event(self, value: dict[str, Any]) -> dict[str, Any] | None:
        whole = self._whole(value, [])
        return whole if self._seam.shows_usage else None

    def _made_whole(self, usage: dict[str, Any]) -> None:
        seam = self._seam
        usage["prompt_tokens"], usage["completion_tokens"] = seam.prompt_tokens, self._tokens
        if "total_tokens" in usage:
            usage["total_tokens"] = seam.prompt_tokens + self._tokens
        details = usage.get("prompt_tokens_details")
        cached = None
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            cached = details["cached_tokens"] = min(details["cached_tokens"], seam.prompt_tokens)
        self._usage = Usage(seam.prompt_tokens, self._tokens, cached)

    def _end(self) -> bytes:
        """What the engine would have sent after its last piece."""
        seam = self._seam
        self._usage = Usage(seam.prompt_tokens, self._tokens, None)
        if not seam.shows_usage:
            return DONE
        return usage_event(self._head, self._usage) + DONE


_HEAD = frozenset(("id", "object", "created", "model", "choices"))


def usage_event(head: dict[str, Any], usage: Usage) -> bytes:
    """The event that only tells usage, for a stream that its engine did not end."""
    told = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return write_event(head | {"choices": [], "usage": told})


def head_of(said: Said, *, chat: bool) -> dict[str, Any]:
    """What the client's stream calls itself."""
    head = said.head
    return {
        "id": None if head is None else head.id,
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": None if head is None else head.created,
        "model": None if head is None else head.model,
    }


def _shift(logprobs: dict[str, Any], offset: int) -> None:
    offsets = logprobs.get("text_offset")
    if isinstance(offsets, list):
        logprobs["text_offset"] = [each + offset for each in offsets]
