"""Transcript: a stream's events as they passed, kept to go on with it elsewhere. They are read when that is due."""

from __future__ import annotations

import msgspec

from pointsman.edge.serving.migration.said import Said
from pointsman.edge.serving.migration.sse_events import TokenId, read_events, read_head

RAW_BYTES = 32 * 1024
"""Kept as they came up to this; then they are read, which leaves about a fiftieth of it."""
MOST_BYTES = 8 * 2**20
"""A stream of which more would be kept can't go on elsewhere."""


class Transcript:
    """Of one stream, over all the engines that it came from. `add` costs a list's append."""

    __slots__ = ("_raw", "_raw_bytes", "_said", "prompt", "too_long")

    def __init__(self) -> None:
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._said = Said()
        self.prompt: bytes | None = None
        """Ids of the prompt, as a JSON array: read when an engine fails, since prompts are long."""
        self.too_long = False
        """Nothing is kept any more."""

    def add(self, block: bytes) -> None:
        """Whole events that the client gets, with their token ids."""
        self._raw.append(block)
        self._raw_bytes += len(block)
        if self._raw_bytes > RAW_BYTES:
            self._read()

    @property
    def said(self) -> Said:
        """What they came to."""
        self._read()
        said = self._said
        if said.prompt_ids is None and self.prompt is not None:
            try:
                said.prompt_ids = msgspec.json.decode(self.prompt, type=list[TokenId])
            except (msgspec.MsgspecError, RecursionError):
                said.unreadable = True
        return said

    def _read(self) -> None:
        said, raw = self._said, self._raw
        self._raw, self._raw_bytes = [], 0
        if self.too_long:
            return
        block = b"".join(raw)
        if said.head is None:
            said.head = read_head(block)
        for event in read_events(block):
            if event is None:
                said.unreadable = True
            else:
                said.add(event)
        said.pack()
        if said.size_bytes + 4 * len(said.ids) > MOST_BYTES:
            self.too_long = True
            self._said = Said()
