"""ReplayedStream: the same request computed again elsewhere. What the client has is compared and left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.breaks import CutShortError, DivergedError, ErrorEventError
from pointsman.edge.serving.migration.said import Channel, pieces_of
from pointsman.edge.serving.migration.scanned import ScannedStream
from pointsman.edge.serving.migration.sse_events import (
    Choice,
    failure_of,
    read_event,
    read_whole,
    says_something,
    split_events,
    words_of,
    write_event,
)
from pointsman.edge.serving.migration.strip import without_ids
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.sse import StreamScanner


class ReplayedStream(ScannedStream):
    """Of an engine that was sent the client's own request.

    Text is compared by channel (content, reasoning, the name and arguments of each tool call), since engines cut it
    into events as they like. Ids of tool calls are made anew each time and are not compared.

    Args:
        what: that the client has got.
        strips: the client did not ask for the token ids that it comes with.
    """

    __slots__ = ("_at", "_caught_up", "_had", "_head", "_ids_left", "_logprobs_left", "_said", "_strips")

    def __init__(self, transcript: Transcript, on_fault: Callable[[], None], *, hide_usage: bool, strips: bool) -> None:
        super().__init__(StreamScanner(hide_usage=hide_usage, whole_events=True), transcript, on_fault)
        said = self._said = transcript.said
        self._strips = strips
        self._had: dict[Channel, str] = {channel: "".join(texts) for channel, texts in said.pieces.items()}
        self._at: dict[Channel, int] = {}
        """How far what the client has was said again; what a long answer has left is not copied for each event."""
        self._logprobs_left = said.logprobs
        self._ids_left = len(said.ids)
        self._caught_up = False
        self._head = None if said.head is None else (said.head.id, said.head.created, said.head.model)

    def feed(self, data: bytes) -> bytes:
        """The next bytes; returns what the client has not got yet."""
        out = self._scanner.feed(data)
        if not out or self.fault is not None:
            return b""
        return b"".join(self._passed(event) for event in split_events(out))

    def flush(self) -> bytes:
        """The stream has ended."""
        self._scanner.flush()
        ended = self._scanner.done or self._scanner.error
        if self.fault is None and not ended and self._transcript.said.finish_reason is None:
            self.fault = CutShortError("its stream ended before its answer did")
        return b""

    def _passed(self, event: bytes) -> bytes:
        if self.fault is not None:
            return b""
        failure = failure_of(event)
        if failure is not None:
            self._fail(ErrorEventError(failure, words_of(event)))
            return b""
        read = read_event(event)
        if read is None:
            if says_something(event):
                if not self._caught_up:
                    self._fail(DivergedError("another run of it sent an event that could not be read"))
                    return b""
                self._transcript.add(event)
            return event
        value = read_whole(event) or {}
        if read.choices:
            if not self._caught_up and not self._remainder(read.choices[0], value):
                return b""
        elif not self._caught_up and self._anything_left:
            self._fail(DivergedError("another run of it ended before it came to where the first one broke off"))
            return b""
        return self._write(value)

    def _write(self, value: dict[str, Any]) -> bytes:
        """With the name that the client's stream began with."""
        if self._head is not None:
            for key, own in zip(("id", "created", "model"), self._head, strict=True):
                if own is not None and key in value:
                    value[key] = own
        raw = write_event(value)
        self._transcript.add(raw)
        return without_ids(raw) if self._strips else raw

    # ---- catching up

    @property
    def _anything_left(self) -> bool:
        return any(self._at.get(channel, 0) < len(text) for channel, text in self._had.items())

    def _remainder(self, choice: Choice, value: dict[str, Any]) -> bool:
        """Leave out of an event what the client has; False: it has all of it."""
        said = self._said
        if said.finish_reason is not None:
            return self._past_the_end(choice)
        new: dict[Channel, str] = {}
        for channel, text in pieces_of(choice):
            had, at = self._had.get(channel, ""), self._at.get(channel, 0)
            same = min(len(had) - at, len(text))
            if not had.startswith(text[:same], at):
                self._fail(DivergedError("another run of it says something else than the first one did"))
                return False
            self._at[channel] = at + same
            if len(text) > same:
                new[channel] = text[same:]
        logprobs, ids = self._counts(value)
        if self._anything_left:
            if new or choice.finish_reason is not None:
                self._fail(DivergedError("another run of it says something else than the first one did"))
            else:
                self._leave_out(logprobs, ids)
            self.repeated += 1
            return False
        rest = bool(new) or choice.finish_reason is not None or logprobs > self._logprobs_left or ids > self._ids_left
        if not rest and (said.anything or not self._names_the_speaker(choice)):
            self._leave_out(logprobs, ids)
            self.repeated += 1
            return False
        self._cut(value, choice, new)
        self._caught_up = True
        return True

    def _names_the_speaker(self, choice: Choice) -> bool:
        """It does, and the client has not heard it."""
        return choice.delta is not None and choice.delta.role is not None and not self._said.role

    def _past_the_end(self, choice: Choice) -> bool:
        """The client has the whole answer, and only its usage or end is missing."""
        for channel, text in pieces_of(choice):
            at = self._at.get(channel, 0)
            if not self._had.get(channel, "").startswith(text, at):
                self._fail(DivergedError("another run of it says something else than the first one did"))
            self._at[channel] = at + len(text)
        self.repeated += 1
        return False

    def _counts(self, value: dict[str, Any]) -> tuple[int, int]:
        """Logprobs and token ids of an event."""
        choice = value["choices"][0]
        logprobs = choice.get("logprobs") or {}
        told = logprobs.get("content") or logprobs.get("tokens") or ()
        return len(told), len(choice.get("token_ids") or ())

    def _leave_out(self, logprobs: int, ids: int) -> None:
        self._logprobs_left = max(0, self._logprobs_left - logprobs)
        self._ids_left = max(0, self._ids_left - ids)

    def _cut(self, value: dict[str, Any], choice: Choice, new: dict[Channel, str]) -> None:
        """The first event of which the client has not got all."""
        piece = value["choices"][0]
        if "text" in piece:
            piece["text"] = new.get(("text", 0), "")
        delta = piece.get("delta")
        if isinstance(delta, dict):
            self._cut_delta(delta, new)
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict) and self._logprobs_left:
            piece["logprobs"] = {
                key: part[self._logprobs_left :] if isinstance(part, list) else part for key, part in logprobs.items()
            }
        if isinstance(piece.get("token_ids"), list):
            piece["token_ids"] = piece["token_ids"][self._ids_left :]
        self._logprobs_left = self._ids_left = 0

    def _cut_delta(self, delta: dict[str, Any], new: dict[Channel, str]) -> None:
        if self._said.role:
            delta.pop("role", None)
        for key in ("content", "reasoning", "reasoning_content", "refusal"):
            if isinstance(delta.get(key), str):
                delta[key] = new.get((key, 0), "")
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            delta["tool_calls"] = [call for call in calls if self._cut_call(call, new)]
            if not delta["tool_calls"]:
                del delta["tool_calls"]

    def _cut_call(self, call: dict[str, Any], new: dict[Channel, str]) -> bool:
        """False: the client has all of it."""
        index, function = call.get("index", 0), call.get("function") or {}
        known = ("name", index) in self._said.pieces
        if known:
            call.pop("id", None)
            call.pop("type", None)
            function.pop("name", None)
        if isinstance(function.get("arguments"), str):
            function["arguments"] = new.get(("arguments", index), "")
        return not known or bool(function.get("arguments"))

    def _fail(self, error: PointsmanError) -> None:
        if self.fault is None:
            self.fault = error
            self._on_fault()
