"""StreamReader: what a relay asks of whoever reads along a stream."""

from __future__ import annotations

from typing import Protocol

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.wire.usage import Usage


class StreamReader(Protocol):
    """Reads along a stream, and says which bytes go on to the client."""

    @property
    def events(self) -> int:
        """Complete data events that this engine sent, without `[DONE]`."""

    @property
    def usage(self) -> Usage | None:
        """The last usage seen, of the client's whole answer."""

    @property
    def done(self) -> bool:
        """`data: [DONE]` was seen."""

    @property
    def error(self) -> bool:
        """An error event was seen."""

    @property
    def blames_request(self) -> bool:
        """The error events that were seen say that the request is at fault."""

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the body; returns what goes on."""

    def flush(self) -> bytes:
        """The stream has ended; returns what still goes on."""


class TrackedReader(StreamReader, Protocol):
    """A reader of a stream that could go on elsewhere: it stops at what would end the answer wrongly."""

    @property
    def fault(self) -> PointsmanError | None:
        """Why the stream can't go on here."""

    @property
    def complete(self) -> bool:
        """The client's answer is complete, whatever else the engine would send."""

    @property
    def held(self) -> bytes:
        """What was left of a stream that ended early; it goes to the client where nobody else goes on."""

    @property
    def repeated(self) -> int:
        """Events that the client had got before from another engine."""
