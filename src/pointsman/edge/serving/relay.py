"""Relay: one engine's answer on its way to the client, as bytes.

Called from the engine connection's callbacks; nothing here awaits, and no task or queue exists per chunk. A client
gets its first byte when this engine answers for certain: a plain answer when it is whole, a stream at its first event.
"""

from __future__ import annotations

from collections.abc import Callable

from pointsman.core.ledger.events import FirstToken, Progress
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.edge.serving.answers import content_length, is_event_stream, relayed_headers
from pointsman.edge.serving.attempt import Attempt, Ending
from pointsman.edge.serving.breaks import (
    HELD_BACK,
    ErrorEventError,
    InterruptedHereError,
    NotContinuedError,
)
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.stream_reader import TrackedReader
from pointsman.edge.serving.timed_attempt import TimedAttempt
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_client import UpstreamConnection, UpstreamError
from pointsman.edge.wire.sse import StreamScanner

PROGRESS_EVERY_TOKENS = 32
"""How often a stream tells the ledger that its KV grew: often enough for load, seldom enough to cost nothing."""
MAX_BODY_HELD_BYTES = 4 * 2**20
"""A plain answer is held back up to this size until it is whole; a larger one goes on as it comes."""
MAX_BODY_KEPT_BYTES = 32 * 2**20
"""A plain answer is kept up to this size to find its usage at the end."""


class Relay(TimedAttempt):
    """Sink of one engine response.

    Args:
        reader: of a stream that may go on elsewhere; None: streams are only read along.
        before: the attempt at the worker that the same stream had before.
    """

    __slots__ = (
        "_begun",
        "_clock",
        "_exchange",
        "_kept_bytes",
        "_ledger",
        "_next_report",
        "_reader",
        "_reported_tokens",
        "_started",
    )

    def __init__(
        self,
        exchange: Exchange,
        worker: str,
        ledger: Ledger,
        timeouts: Timeouts,
        clock: Clock,
        reader: Callable[[Callable[[], None]], TrackedReader] | None = None,
        before: Attempt | None = None,
    ) -> None:
        super().__init__(
            before, worker, timeouts, deadline_s=exchange.deadline_s, ends_with_done=exchange.ends_with_done
        )
        self._exchange = exchange
        self._ledger = ledger
        self._clock = clock
        self._reader = reader
        self._begun = exchange.responder.started
        self._kept_bytes = 0
        self._reported_tokens = 0
        self._next_report = 1
        self._started = False

    # ---- what the dispatcher uses

    def start(self, connection: UpstreamConnection, head: bytes, body: bytes) -> None:
        """Send the request; the answer comes through the callbacks below."""
        self._connection = connection
        responder = self._exchange.responder
        responder.on_pause, responder.on_resume = self._pause, self._resume
        self._last_data_s = self._loop.time()
        self._arm(self._timeouts.first_byte_s, self._first_byte_late)
        self._exchange.sent = True
        connection.send(head, body, self)
        if responder.paused:  # since before: nobody will say so again
            self._pause()

    def abandon(self) -> None:
        """The client left: the engine sees its own client leave, at once."""
        self._settle()
        if self._connection is not None:
            self._connection.abort()

    def interrupt(self, reason: str, fault: Fault | None = None, *, goes_on: bool) -> None:
        """Take the request away from its worker, which sees its client leave. Does nothing once it ended."""
        if self.done.done():
            return
        if self._connection is not None:
            self._connection.abort()
        self._fail(InterruptedHereError(reason, fault, goes_on=goes_on))

    def break_off(self, message: str) -> None:
        """End a stream that nobody goes on with: the client must not take the answer for whole."""
        responder = self._exchange.responder
        if self._scanner is None and self._before is None:
            responder.abort()
        else:
            if isinstance(self.error, ErrorEventError) and self.error.said:
                message += f" (the engine says: {self.error.said})"  # for the client alone: it may hold its prompt
            # An event that the client's SDK understands, then a proper end, and no `[DONE]` of the engine's.
            responder.write(b"data: " + error_body(502, message, code="stream_broken") + b"\n\n")
            responder.finish()

    def end_as_it_is(self) -> None:
        """End a stream that ended early, as its engine did."""
        if self._tracked is not None and self._tracked.held:
            self._exchange.responder.write(self._tracked.held)
        self._exchange.responder.finish()

    def deliver(self) -> None:
        """The client gets the engine's answer, which was held back."""
        self._begin(self.status)
        self._exchange.responder.write(b"".join(self._kept or ()))
        self._exchange.responder.finish()

    # ---- callbacks of the engine connection

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and headers are kept as they are, but for those that belong to one connection."""
        self.status = status
        self._headers = headers
        self._last_data_s = self._loop.time()
        self._arm(self._timeouts.idle_s, self._check_idle)
        if status >= 300 or not is_event_stream(headers):
            self._kept = []
        elif self._reader is None:
            self._scanner = StreamScanner(hide_usage=self._exchange.adds_usage, whole_events=True)
        else:
            self._scanner = self._tracked = self._reader(self._fault_seen)

    def on_data(self, data: bytes) -> None:
        """Some bytes of the body."""
        scanner = self._scanner
        if scanner is None:
            self._came()
            self._keep(data)
            return
        self._came()
        out = scanner.feed(data)
        if out:
            if not self._begun:
                self._begin(self.status)
            self._exchange.responder.write(out)
        if scanner.events >= self._next_report:
            self._report(scanner.events)

    def on_chunk(self, data: bytes, framed: bytes) -> None:
        """One whole chunk, and the bytes in which it came: where nothing changes they go on as they are."""
        scanner = self._scanner
        if scanner is None:
            self.on_data(data)
            return
        self._came()
        out = scanner.feed(data)
        if out:
            if not self._begun:
                self._begin(self.status)
            self._exchange.responder.write(out, framed if out is data else None)
        if scanner.events >= self._next_report:
            self._report(scanner.events)

    def _came(self) -> None:
        now_s = self._loop.time()
        if self._first_ms is not None and now_s - self._last_data_s > self._gap_s:
            self._gap_s = now_s - self._last_data_s
        self._last_data_s = now_s

    def _begin(self, status: int) -> None:
        """The first byte goes out. A stream that goes on elsewhere has begun already."""
        self._begun = True
        responder = self._exchange.responder
        self._exchange.http_status = status
        if not responder.started:
            length = None if self._scanner is not None else content_length(self._headers)
            responder.start(status, relayed_headers(self._headers, self._exchange, self._worker), length=length)

    def _report(self, events: int) -> None:
        """The first token at once, later ones now and then: the ledger must not cost anything per chunk."""
        tracked = self._tracked
        if tracked is not None and (tracked.complete or tracked.fault is not None):
            self._stop(tracked.fault)
            return
        now_ms = self._clock()
        if not self._started:
            self._started = True
            if self._first_ms is None:
                self._first_ms = now_ms
            if self._before is not None:
                self._gap_s = max(self._gap_s, self._last_data_s - self._before._last_data_s)
            self._ledger.apply(FirstToken(self._exchange.request.id, now_ms))
        if events - self._reported_tokens >= PROGRESS_EVERY_TOKENS:  # also where the first ones came in one read
            self._ledger.apply(Progress(self._exchange.request.id, now_ms, events - self._reported_tokens))
            self._reported_tokens = events
        self._next_report = self._reported_tokens + PROGRESS_EVERY_TOKENS

    def _fault_seen(self) -> None:
        """The reader found why the stream can't go on; what came before that goes out first."""
        self._next_report = 0

    def on_end(self) -> None:
        """The engine's answer is complete."""
        self._last_ms = self._clock()
        scanner = self._scanner
        if scanner is None:
            self._end_plain()
            return
        rest = scanner.flush()
        if rest:
            self._begin(self.status)
            self._exchange.responder.write(rest)
        fault = None if self._tracked is None else self._tracked.fault
        if fault is not None:
            self._fail(fault)
            return
        if not self._begun:
            self._begin(self.status)
        self._exchange.responder.finish()
        self._finish(Ending.COMPLETE)

    def _end_plain(self) -> None:
        if self._before is not None:
            self._fail(
                NotContinuedError(self.status, f"{self._worker} answered {self.status} to what was to go on there")
            )
            return
        if not self._begun:
            if self.status in HELD_BACK:
                self._finish(Ending.HELD)
                return
            self._begin(self.status)
            self._exchange.responder.write(b"".join(self._kept or ()))
        self._exchange.responder.finish()
        self._finish(Ending.COMPLETE)

    def on_error(self, error: UpstreamError) -> None:
        """The engine's answer will not be complete."""
        self._fail(error)

    # ---- endings

    def _stop(self, fault: PointsmanError | None) -> None:
        """The engine need not go on: it failed, or the answer is complete."""
        if self._connection is not None:
            self._connection.abort()
        if fault is not None:
            self._fail(fault)
            return
        self._last_ms = self._clock()
        if self._first_ms is None:
            self._first_ms = self._last_ms
        self._exchange.responder.finish()
        self._finish(Ending.COMPLETE)

    def _fail(self, error: PointsmanError) -> None:
        self.error = error
        self._finish(Ending.BROKEN if self._exchange.responder.started else Ending.NOTHING_SENT)

    def _finish(self, ending: Ending) -> None:
        self._settle()
        if not self.done.done():
            self.done.set_result(ending)

    def _settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._exchange.responder.on_pause = self._exchange.responder.on_resume = None
        if not self._last_ms and self._first_ms is not None:
            # Cut short: what came until then took that long.
            self._last_ms = max(self._first_ms, self._clock() - 1000 * (self._loop.time() - self._last_data_s))

    # ---- plain answers

    def _keep(self, data: bytes) -> None:
        if self._before is not None:
            return
        if self._begun:
            self._exchange.responder.write(data)
        if self._kept is None:
            return
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_BODY_KEPT_BYTES:
            self._kept = None
            return
        self._kept.append(data)
        if not self._begun and self._kept_bytes > MAX_BODY_HELD_BYTES:
            self._begin(self.status)
            self._exchange.responder.write(b"".join(self._kept))
