"""DecodeRelay: the answer of an engine that goes on from another one's KV. What says no is kept from the client."""

from __future__ import annotations

from collections import deque

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.attempt import Ending
from pointsman.edge.serving.breaks import ErrorEventError
from pointsman.edge.serving.relay import Relay
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.sse import event_data, has_error

LAST_EVENTS = 3
"""The last one tells of the transfer; usage and `[DONE]` may come behind it."""
LAST_PIECES = 8
MOST_PIECE_BYTES = 256 * 2**10


class DecodeRelay(Relay):
    """As a relay, but that errors before the first byte are held back, whatever they are, and the end is kept."""

    __slots__ = ("_ends", "_first")

    def refuse(self, error: PointsmanError) -> bool:
        """The engine waits for what will not come: it sees its client leave. False: it answers, or has ended."""
        if self.done.done() or self.begun:
            return False
        if self._connection is not None:
            self._connection.abort()
        self._fail(error)
        return True

    @property
    def begun(self) -> bool:
        """The first token came: all of the KV was there."""
        # Of a stream that goes on its client has something before that.
        return self._started or (self._begun and not self.goes_on)

    @property
    def goes_on(self) -> bool:
        """The client had the beginning of it from another engine."""
        return self._before is not None

    @property
    def came(self) -> bool:
        """It ended, and the client got an answer or its beginning."""
        return self.begun or self.done.result() is Ending.COMPLETE

    def parts(self) -> list[bytes]:
        """JSON of what may tell of the transfer: the plain answer, or a stream's last events, the very last first."""
        if self._scanner is None:
            return [b"".join(self._kept)] if self._kept else []
        events = b"".join(self._ends).replace(b"\r\n", b"\n").split(b"\n\n")
        found = [event_data(event) for event in events]
        return [data for data in reversed(found) if data.startswith(b"{")][:LAST_EVENTS]

    # ---- callbacks of the engine connection

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and headers."""
        self._ends: deque[bytes] = deque(maxlen=LAST_PIECES)
        self._first: bytes | None = b""
        super().on_head(status, headers)

    def on_data(self, data: bytes) -> None:
        """Some bytes of the body."""
        if not self._looked_at(data):
            super().on_data(data)

    def on_chunk(self, data: bytes, framed: bytes) -> None:
        """One whole chunk."""
        if not self._looked_at(data):
            super().on_chunk(data, framed)

    def _looked_at(self, data: bytes) -> bool:
        """Keeps what may be the end. True: nothing more is to be done, for the stream begins with an error event."""
        if self._scanner is None:
            return False
        self._ends.append(data if len(data) <= MOST_PIECE_BYTES else data[-MOST_PIECE_BYTES:])
        if self._first is None:
            return False
        first = self._first + data
        if b"\n\n" not in first and b"\n\r\n" not in first and len(first) < MOST_PIECE_BYTES:
            self._first = first
            return False
        self._first = None
        if self._begun or self._tracked is not None or not has_error(first):
            return False
        self.refuse(ErrorEventError("its stream began with an error event"))
        return True

    def _end_plain(self) -> None:
        if self.status >= 400 and not self._begun and self._before is None:
            self._finish(Ending.HELD)
            return
        super()._end_plain()
