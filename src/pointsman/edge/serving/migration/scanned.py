"""ScannedStream: what all readers of streams that could go on elsewhere have in common."""

from __future__ import annotations

from collections.abc import Callable

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.migration.transcript import Transcript
from pointsman.edge.wire.sse import StreamScanner
from pointsman.edge.wire.usage import Usage


class ScannedStream:
    """The part of a TrackedReader that a scanner knows, and where subclasses say how the stream stands.

    `on_fault` is called once, when `fault` or `complete` is set in the middle of the stream.
    """

    __slots__ = ("_on_fault", "_scanner", "_transcript", "complete", "fault", "held", "repeated")

    def __init__(self, scanner: StreamScanner, transcript: Transcript, on_fault: Callable[[], None]) -> None:
        self._scanner = scanner
        self._transcript = transcript
        self._on_fault = on_fault
        self.fault: PointsmanError | None = None
        self.complete = False
        """The client's answer is complete: the engine need not go on."""
        self.held = b""
        self.repeated = 0
        """Events that the client had got before."""

    @property
    def events(self) -> int:
        """Data events of this engine, those that were repeated included."""
        return self._scanner.events

    @property
    def usage(self) -> Usage | None:
        """The last one seen."""
        return self._scanner.usage

    @property
    def done(self) -> bool:
        """The stream's last event was seen."""
        return self._scanner.done

    @property
    def error(self) -> bool:
        """An error event was seen."""
        return self._scanner.error

    @property
    def blames_request(self) -> bool:
        """Errors that were seen are the request's own."""
        return self._scanner.blames_request
