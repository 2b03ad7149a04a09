"""Attempt: one engine's answer to one request, as far as it came, and what can be done to it."""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.edge.serving.breaks import (
    CutShortError,
    EngineTimeoutError,
    ErrorEventError,
    InterruptedHereError,
    fault_of,
    fault_of_status,
)
from pointsman.edge.serving.stream_reader import StreamReader, TrackedReader
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.usage import Usage, usage_of_body


class Ending(enum.Enum):
    """How an attempt ended."""

    COMPLETE = "complete"
    NOTHING_SENT = "nothing sent"
    """The engine failed before the client got a byte: another answer is still possible."""
    HELD = "held"
    """It answered that it could not, and the client has not got that yet."""
    BROKEN = "broken"
    """It failed after the first byte."""


class Defect(enum.StrEnum):
    """What was wrong with a stream, as metrics name it."""

    ENGINE_LOST = "engine_lost"
    TIMEOUT = "timeout"
    ERROR_EVENT = "error_event"
    """The engine itself sent an error event."""
    NO_DONE = "no_done"
    """It ended properly but without `[DONE]`: probably cut short inside the engine."""
    TAKEN_AWAY = "taken_away"
    """It was ended here: its worker drains, or is thought dead."""


class Attempt(ABC):
    """`done` resolves once, with how it ended.

    Args:
        before: the attempt at the worker that the same stream had before.
        ends_with_done: a stream has to end with `data: [DONE]`.
    """

    __slots__ = (
        "_before",
        "_ends_with_done",
        "_first_ms",
        "_gap_s",
        "_headers",
        "_kept",
        "_last_data_s",
        "_last_ms",
        "_loop",
        "_paused",
        "_scanner",
        "_tracked",
        "done",
        "error",
        "status",
    )

    def __init__(self, before: Attempt | None, *, ends_with_done: bool) -> None:
        self._before = before
        self._ends_with_done = ends_with_done
        self._loop = asyncio.get_running_loop()
        self._scanner: StreamReader | None = None
        self._tracked: TrackedReader | None = None
        self._headers: Headers = ()
        self._kept: list[bytes] | None = None
        self._first_ms: float | None = None if before is None else before._first_ms
        self._gap_s: float = 0.0 if before is None else before._gap_s
        self._last_ms = 0.0
        self._last_data_s = 0.0
        self._paused = False
        self.done: asyncio.Future[Ending] = self._loop.create_future()
        self.error: PointsmanError | None = None
        self.status = 0

    # ---- what can be done to it

    @abstractmethod
    def abandon(self) -> None:
        """The client left: the engine sees its own client leave, at once."""

    @abstractmethod
    def interrupt(self, reason: str, fault: Fault | None = None, *, goes_on: bool) -> None:
        """Take the request away from its worker, which sees its client leave. Does nothing once it ended."""

    @abstractmethod
    def break_off(self, message: str) -> None:
        """End a stream that nobody goes on with: the client must not take the answer for whole."""

    @abstractmethod
    def end_as_it_is(self) -> None:
        """End a stream that ended early, as its engine did."""

    @abstractmethod
    def deliver(self) -> None:
        """The client gets the engine's answer, which was held back."""

    # ---- how it goes

    @property
    def fault(self) -> Fault | None:
        """In which way the worker failed; None: it did not."""
        if self.error is not None:
            return fault_of(self.error)
        if self._scanner is not None and self._scanner.error:
            return None if self._scanner.blames_request else Fault.ERROR_EVENT
        return fault_of_status(self.status)

    @property
    def usage(self) -> Usage | None:
        """What the engine reported, once the answer is complete."""
        if self._scanner is not None:
            return self._scanner.usage
        if self._kept is not None and self.status < 300:
            return usage_of_body(b"".join(self._kept))
        return None

    @property
    def events(self) -> int:
        """Events of the stream so far; what an engine says again that another one said is not counted twice."""
        before = 0 if self._before is None else self._before.events
        return before + self._own_events

    @property
    def engine_events(self) -> int:
        """Events that this engine sent, also those that the client had before."""
        return 0 if self._scanner is None else self._scanner.events

    @property
    def _own_events(self) -> int:
        if self._scanner is None:
            return 0
        return self._scanner.events - (0 if self._tracked is None else self._tracked.repeated)

    @property
    def first_ms(self) -> float | None:
        """When the first event of a stream came; None for a plain answer, which has no first token to speak of."""
        return self._first_ms

    @property
    def idle_s(self) -> float:
        """How long nothing came."""
        return self._loop.time() - self._last_data_s

    @property
    def retry_after_ms(self) -> float | None:
        """For how long the engine asked to be left alone, where it answered that it is overloaded; None: it did not."""
        if self.status not in (429, 503):
            return None
        asked = next((value for name, value in self._headers if name.lower() == b"retry-after"), b"")
        return 1000.0 * int(asked) if asked.isdigit() and len(asked) < 6 else None

    @property
    def silent_ms(self) -> float | None:
        """Since something came of a stream that has begun; None: it has not, or its client holds it up."""
        if self._scanner is None or self._paused or not self._scanner.events or self.done.done():
            return None
        return 1000.0 * self.idle_s

    @property
    def paused(self) -> bool:
        """It waits for its client."""
        return self._paused

    @property
    def gap_ms(self) -> float | None:
        """Longest time between two pieces of a stream from its first event on."""
        return None if self._first_ms is None else 1000 * self._gap_s

    @property
    def defect(self) -> Defect | None:
        """What was wrong with a stream that had begun."""
        if self.error is not None:
            return _defect(self.error)
        scanner = self._scanner
        if scanner is None:
            return None
        if scanner.error:
            return Defect.ERROR_EVENT
        return Defect.NO_DONE if self._ends_with_done and not scanner.done else None

    @property
    def last_ms(self) -> float:
        """When its last bytes came, also of a stream that was cut short; 0 where nothing came."""
        return self._last_ms


def _defect(error: PointsmanError) -> Defect:
    if isinstance(error, EngineTimeoutError):
        return Defect.TIMEOUT
    if isinstance(error, ErrorEventError):
        return Defect.ERROR_EVENT
    if isinstance(error, CutShortError):
        return Defect.NO_DONE
    return Defect.TAKEN_AWAY if isinstance(error, InterruptedHereError) else Defect.ENGINE_LOST
