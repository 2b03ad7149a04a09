"""Scanning a stream of server-sent events while its bytes pass by: events, usage, end, errors. No JSON per event."""

from __future__ import annotations

import re

import msgspec

from pointsman.edge.wire.usage import USAGE_OBJECT, Usage, usage_of_json

MAX_HELD_BYTES = 1024 * 1024

_EVENT_END = re.compile(rb"\n\r?\n")
_ERROR_TYPE = re.compile(rb"(?:\A|\n)event:[ \t]*+error[ \t]*+\r?\n")
_DATA = b"\ndata:"


class _MaybeError(msgspec.Struct):
    error: msgspec.Raw = msgspec.Raw(b"null")
    object: msgspec.Raw = msgspec.Raw(b"null")
    code: int | float | str | None = None


class _Code(msgspec.Struct):
    code: int | float | str | None = None


_error_decoder = msgspec.json.Decoder(_MaybeError)
_code_decoder = msgspec.json.Decoder(_Code)


class StreamScanner:
    r"""Reads along a stream in whatever pieces it comes. Lines end with `\n` or `\r\n`.

    `feed` returns the bytes to pass on. Without `hide_usage` these are the bytes given, at once. With it, an event that
    is not complete is held back, and an event that holds usage and an empty `choices` array is left out; every other
    byte stays. `whole_events` holds incomplete events back, too, and leaves none out.
    """

    __slots__ = (
        "_hide_usage",
        "_max_held",
        "_skipping",
        "_tail",
        "_whole",
        "blames_request",
        "done",
        "error",
        "events",
        "overflowed",
        "usage",
    )

    def __init__(self, *, hide_usage: bool = False, whole_events: bool = False, max_held_bytes: int = MAX_HELD_BYTES):
        self._hide_usage = hide_usage
        self._whole = hide_usage or whole_events
        self._max_held = max_held_bytes
        self._tail = bytearray()
        self._skipping = False
        self.events = 0
        """Complete data events so far, without `[DONE]`."""
        self.usage: Usage | None = None
        """The last usage seen."""
        self.done = False
        """`data: [DONE]` was seen."""
        self.error = False
        """An error event was seen."""
        self.blames_request = False
        """The first one says that the request is at fault: its code is a 4xx."""
        self.overflowed = False
        """An event longer than the bound passed by unread."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the body; returns what to pass on."""
        if not self._tail:
            if data.endswith(b"\n\n"):  # a token's way
                self.events += data.count(_DATA) + data.startswith(b"data:")
                if b'"usage"' in data or b"error" in data or b"[DONE]" in data:
                    return self._scan_marked(data)
                return data
            if not data:
                return data
        if self._skipping:
            return self._skip(data)
        return self._feed_unaligned(data)

    def flush(self) -> bytes:
        """The stream has ended: what is still held and may be passed on."""
        tail = bytes(self._tail)
        self._tail.clear()
        if self._skipping:
            self._skipping = False
            return b""
        rest = self._scan(tail) if tail else b""
        return rest if self._whole else b""

    def _feed_unaligned(self, data: bytes) -> bytes:
        tail = self._tail
        searched = max(0, len(tail) - 2)
        tail += data
        end = max(tail.rfind(b"\n\n", searched) + 2, tail.rfind(b"\n\r\n", searched) + 3)
        if end < 4 and not _EVENT_END.match(tail):
            # rfind found nothing: both sums are what -1 makes of them
            end = 0
        out = b""
        if end:
            complete = bytes(tail[:end])
            del tail[:end]
            out = self._scan(complete)
        if len(tail) > self._max_held:
            out += self._overflow()
        return out if self._whole else data

    def _overflow(self) -> bytes:
        """Let go of an event that is too long to be held, and read on at its end."""
        held = bytes(self._tail)
        self.overflowed = True
        self._skipping = True
        self.events += held.count(_DATA) + held.startswith(b"data:")
        self._tail = bytearray(held[-2:])
        return held

    def _skip(self, data: bytes) -> bytes:
        before = len(self._tail)
        block = bytes(self._tail) + data
        match = _EVENT_END.search(block)
        if match is None:
            self._tail = bytearray(block[-2:])
            return data
        cut = match.end() - before
        self._skipping = False
        self._tail.clear()
        rest = data[cut:]
        return data[:cut] + (self.feed(rest) if rest else b"")

    def _scan(self, block: bytes) -> bytes:
        """Look through complete events."""
        self.events += block.count(_DATA) + block.startswith(b"data:")
        return self._scan_marked(block)

    def _scan_marked(self, block: bytes) -> bytes:
        if b"[DONE]" in block:
            found = _count_done(block)
            if found:
                self.done = True
                self.events -= found
        if b"error" in block and not self.error:
            self.error = has_error(block)
            self.blames_request = self.error and _blames_request(block)
        if b'"usage"' in block and USAGE_OBJECT.search(block) is not None:
            return self._scan_usage(block)
        return block

    def _scan_usage(self, block: bytes) -> bytes:
        """Look only at the events that hold a usage object: of a block of a hundred events it is one."""
        kept: list[bytes] = []
        at = 0
        for found in USAGE_OBJECT.finditer(block):
            if found.start() < at:
                continue
            start = _event_start(block, at, found.start())
            ending = _EVENT_END.search(block, found.start())
            end = ending.end() if ending is not None else len(block)
            event = block[start:end]
            if self._read_usage(event):
                # blank lines before the event belong to nobody; they stay, so that no split of the stream matters
                event = event[: len(event) - len(event.lstrip(b"\r\n"))]
            kept += block[at:start], event
            at = end
        kept.append(block[at:])
        return b"".join(kept) if self._hide_usage else block

    def _read_usage(self, event: bytes) -> bool:
        """Take the usage; True for an event that holds nothing else."""
        usage, alone = usage_of_json(event_data(event))
        if usage is not None:
            self.usage = usage
        return alone and self._hide_usage


def _count_done(block: bytes) -> int:
    """Lines that begin with `data: [DONE]`. A regular expression over a whole block would cost more than all else."""
    found = 0
    at = block.find(b"[DONE]")
    while at >= 0:
        line = block[block.rfind(b"\n", 0, at) + 1 : at]
        found += line in (b"data: ", b"data:")
        at = block.find(b"[DONE]", at + 6)
    return found


def has_error(block: bytes) -> bool:
    """Whether an event is named `error`, or is JSON with an `error` that is not null or with `"object": "error"`."""
    if _ERROR_TYPE.search(block) is not None:
        return True
    # in the text of an answer the quotes are escaped, so nearly all blocks are done with here
    if b'"error"' not in block:
        return False
    return any(_is_error(event) for event in _EVENT_END.split(block) if b'"error"' in event)


def _blames_request(block: bytes) -> bool:
    events = [event for event in _EVENT_END.split(block) if b"error" in event and has_error(event)]
    try:
        answer = _error_decoder.decode(event_data(events[0]))
        code = _code_decoder.decode(answer.error).code if bytes(answer.error)[:1] == b"{" else answer.code
    except (IndexError, msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(code, int) and 400 <= code < 500


def _is_error(event: bytes) -> bool:
    try:
        answer = _error_decoder.decode(event_data(event))
    except (msgspec.MsgspecError, RecursionError):
        return False
    return bytes(answer.error) != b"null" or bytes(answer.object) == b'"error"'


def _event_start(block: bytes, at: int, inside: int) -> int:
    """Where the event that holds position `inside` begins, not before `at`."""
    for ending in (b"\n\n", b"\n\r\n"):
        found = block.rfind(ending, at, inside)
        if found >= 0:
            at = found + len(ending)
    return at


def event_data(event: bytes) -> bytes:
    """The data of one event: its `data:` lines, joined with newlines."""
    lines = (line.rstrip(b"\r") for line in event.split(b"\n"))
    return b"\n".join(line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:"))
