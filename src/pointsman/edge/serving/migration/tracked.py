"""TrackedStream: a stream on its way to the client that could go on elsewhere. What would end it wrongly is held."""

from __future__ import annotations

from collections.abc import Callable

from pointsman.edge.serving.breaks import CutShortError, ErrorEventError
from pointsman.edge.serving.migration.scanned import ScannedStream
from pointsman.edge.serving.migration.sse_events import failure_of, split_events, words_of
from pointsman.edge.serving.migration.strip import without_answer_ids, without_ids, without_its_prompt
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.sse import StreamScanner

_GOES_ON = b'"finish_reason":null'
_END_BYTES = 64
MAX_EVENT_BYTES = 32 * 2**20
"""The first event holds the prompt's ids, about 7 bytes a token."""


class TrackedStream(ScannedStream):
    """Of the engine that a stream began at.

    Args:
        hide_usage: the client did not ask for the usage event.
        strips: token ids were asked for by us, not by the client.
        on_fault: called once, when `fault` or `complete` is set.
    """

    __slots__ = ("_prompt_came", "_strips")

    def __init__(self, transcript: Transcript, on_fault: Callable[[], None], *, hide_usage: bool, strips: bool) -> None:
        scanner = StreamScanner(hide_usage=hide_usage, whole_events=True, max_held_bytes=MAX_EVENT_BYTES)
        super().__init__(scanner, transcript, on_fault)
        self._strips = strips
        self._prompt_came = False

    def feed(self, data: bytes) -> bytes:
        """The next bytes; returns whole events that go on to the client."""
        out = self._scanner.feed(data)
        if not out:
            return out
        # Looked for at the end only, where engines say it: a whole event would cost several times as much.
        if self._scanner.error or (out.rfind(_GOES_ON, -_END_BYTES) < 0 and b'"abort"' in out):
            out = self._until_failure(out)
        if self._prompt_came:
            self._transcript.add(out)
            return without_answer_ids(out) if self._strips else out
        rest, prompt = without_its_prompt(out)
        if prompt is not None:
            self._prompt_came = True
            self._transcript.prompt = prompt
        self._transcript.add(rest)
        return without_ids(rest) if self._strips else out

    def flush(self) -> bytes:
        """The stream has ended. Half an event is nobody's, unless it is all that is missing."""
        rest = self._scanner.flush()
        if self.fault is not None:
            return b""
        ended = self._scanner.done or self._scanner.error
        if not ended and self._transcript.said.finish_reason is None:
            self.fault = CutShortError("its stream ended before its answer did")
            self.held = rest
            return b""
        return without_ids(rest) if self._strips else rest

    def _until_failure(self, block: bytes) -> bytes:
        """What comes before the engine's word that it failed."""
        if self.fault is not None:
            return b""
        at = 0
        for event in split_events(block):
            failure = failure_of(event)
            if failure is not None:
                self.fault = ErrorEventError(failure, words_of(event))
                self._on_fault()
                return block[:at]
            at += len(event)
        return block
