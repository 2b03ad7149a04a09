"""Relay: one engine's answer on its way to the client, as bytes.

Called from the engine connection's callbacks; nothing here awaits, and no task or queue exists per chunk.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from pointsman.core.ledger.events import FirstToken, Progress
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.answers import EVENT_STREAM, relayed_headers
from pointsman.edge.serving.clock import Clock
from pointsman.edge.serving.exchange import Exchange
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.wire.errors import error_body
from pointsman.edge.wire.headers import Headers
from pointsman.edge.wire.http1_client import UpstreamConnection, UpstreamError
from pointsman.edge.wire.sse import StreamScanner
from pointsman.edge.wire.usage import Usage, usage_of_body

PROGRESS_EVERY_TOKENS = 32
"""How often a stream tells the ledger that its KV grew: often enough for load, seldom enough to cost nothing."""
MAX_BODY_KEPT_BYTES = 32 * 2**20
"""A plain answer is kept up to this size to find its usage at the end."""


class Ending(enum.Enum):
    """How an attempt ended."""

    COMPLETE = "complete"
    NOTHING_SENT = "nothing sent"
    """The engine failed before the client got a byte: another answer is still possible."""
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


class EngineTimeoutError(PointsmanError):
    """The engine kept a request waiting beyond a limit."""


class Relay:
    """Sink of one engine response. `done` resolves once, with how it ended."""

    __slots__ = (
        "_clock",
        "_connection",
        "_exchange",
        "_first_ms",
        "_gap_s",
        "_kept",
        "_kept_bytes",
        "_last_data_s",
        "_last_ms",
        "_ledger",
        "_loop",
        "_next_report",
        "_paused",
        "_reported_tokens",
        "_scanner",
        "_timeouts",
        "_timer",
        "_worker",
        "done",
        "error",
        "status",
    )

    def __init__(
        self,
        exchange: Exchange,
        worker: str,
        ledger: Ledger,
        timeouts: Timeouts,
        clock: Clock,
    ) -> None:
        self._exchange = exchange
        self._worker = worker
        self._ledger = ledger
        self._timeouts = timeouts
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection: UpstreamConnection | None = None
        self._scanner: StreamScanner | None = None
        self._kept: list[bytes] | None = None
        self._kept_bytes = 0
        self._reported_tokens = 0
        self._next_report = 1
        self._first_ms: float | None = None
        self._gap_s = 0.0
        self._last_ms = 0.0
        self._last_data_s = 0.0
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[Ending] = self._loop.create_future()
        self.error: PointsmanError | None = None
        self.status = 0

    # ---- what the dispatcher uses

    def start(self, connection: UpstreamConnection, head: bytes, body: bytes) -> None:
        """Send the request; the answer comes through the callbacks below."""
        self._connection = connection
        responder = self._exchange.responder
        responder.on_pause, responder.on_resume = self._pause, self._resume
        self._last_data_s = self._loop.time()
        self._arm(self._timeouts.first_byte_s, self._first_byte_late)
        connection.send(head, body, self)

    def abandon(self) -> None:
        """The client left: the engine sees its own client leave, at once."""
        self._settle()
        if self._connection is not None:
            self._connection.abort()

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
        """Events of the stream so far."""
        return self._scanner.events if self._scanner is not None else 0

    @property
    def first_ms(self) -> float | None:
        """When the first event of a stream came; None for a plain answer, which has no first token to speak of."""
        return self._first_ms

    @property
    def gap_ms(self) -> float | None:
        """Longest time between two pieces of a stream from its first event on."""
        return None if self._first_ms is None else 1000 * self._gap_s

    @property
    def defect(self) -> Defect | None:
        """What was wrong with a stream that had begun."""
        if self.error is not None:
            return Defect.TIMEOUT if isinstance(self.error, EngineTimeoutError) else Defect.ENGINE_LOST
        scanner = self._scanner
        if scanner is None:
            return None
        if scanner.error:
            return Defect.ERROR_EVENT
        return Defect.NO_DONE if self._exchange.ends_with_done and not scanner.done else None

    @property
    def last_ms(self) -> float:
        """When its last bytes came, also of a stream that was cut short; 0 where nothing came."""
        return self._last_ms

    # ---- callbacks of the engine connection

    def on_head(self, status: int, headers: Headers) -> None:
        """Status and headers are kept as they are, but for those that belong to one connection."""
        self.status = status
        self._last_data_s = self._loop.time()
        self._arm(self._timeouts.idle_s, self._check_idle)
        length = _content_length(headers)
        if status < 300 and _is_event_stream(headers):
            self._scanner = StreamScanner(hide_usage=self._exchange.adds_usage)
            length = None
        else:
            self._kept = []
        self._exchange.responder.start(status, relayed_headers(headers, self._exchange, self._worker), length=length)

    def on_data(self, data: bytes) -> None:
        """Some bytes of the body."""
        self._came()
        scanner = self._scanner
        if scanner is None:
            self._keep(data)
            self._exchange.responder.write(data)
            return
        out = scanner.feed(data)
        if out:
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
            self._exchange.responder.write(out, framed if out is data else None)
        if scanner.events >= self._next_report:
            self._report(scanner.events)

    def _came(self) -> None:
        now_s = self._loop.time()
        if self._first_ms is not None and now_s - self._last_data_s > self._gap_s:
            self._gap_s = now_s - self._last_data_s
        self._last_data_s = now_s

    def _report(self, events: int) -> None:
        """The first token at once, later ones now and then: the ledger must not cost anything per chunk."""
        now_ms = self._clock()
        if self._first_ms is None:
            self._first_ms = now_ms
            self._ledger.apply(FirstToken(self._exchange.request.id, now_ms))
        else:
            self._ledger.apply(Progress(self._exchange.request.id, now_ms, events - self._reported_tokens))
            self._reported_tokens = events
        self._next_report = self._reported_tokens + PROGRESS_EVERY_TOKENS

    def on_end(self) -> None:
        """The engine's answer is complete."""
        self._last_ms = self._clock()
        if self._scanner is not None:
            rest = self._scanner.flush()
            if rest:
                self._exchange.responder.write(rest)
        self._exchange.responder.finish()
        self._finish(Ending.COMPLETE)

    def on_error(self, error: UpstreamError) -> None:
        """The engine's answer will not be complete."""
        self._fail(error)

    # ---- endings

    def _fail(self, error: PointsmanError) -> None:
        self.error = error
        responder = self._exchange.responder
        if not responder.started:
            self._finish(Ending.NOTHING_SENT)
            return
        if self._scanner is not None:
            # An event that the client's SDK understands, then a proper end: it must not take the answer for whole.
            self._scanner.flush()
            responder.write(b"data: " + error_body(502, f"the stream broke: {error}", code="stream_broken") + b"\n\n")
            responder.finish()
        else:
            responder.abort()
        self._finish(Ending.BROKEN)

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

    # ---- a client that reads slowly: the engine waits with it, and is not late

    def _pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause_reading()

    def _resume(self) -> None:
        self._paused = False
        self._last_data_s = self._loop.time()
        if self._connection is not None:
            self._connection.resume_reading()

    # ---- time limits

    def _arm(self, seconds: float, callback: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._exchange.deadline_s
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - self._loop.time()))
        self._timer = self._loop.call_later(seconds, callback)

    def _first_byte_late(self) -> None:
        if self._deadline_passed():
            self._late("the request's total time is over")
        else:
            self._late(f"no answer within {self._timeouts.first_byte_s:g} s")

    def _check_idle(self) -> None:
        """Runs once an idle limit, not once a chunk: what came meanwhile moves the limit."""
        if self._deadline_passed():
            self._late("the request's total time is over")
            return
        left = self._last_data_s + self._timeouts.idle_s - self._loop.time()
        if self._paused:
            self._arm(self._timeouts.idle_s, self._check_idle)
        elif left <= 0:
            self._late(f"no byte for {self._timeouts.idle_s:g} s")
        else:
            self._arm(left, self._check_idle)

    def _deadline_passed(self) -> bool:
        deadline = self._exchange.deadline_s
        return deadline is not None and self._loop.time() >= deadline

    def _late(self, message: str) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._fail(EngineTimeoutError(f"{message} from {self._worker}"))

    def _keep(self, data: bytes) -> None:
        if self._kept is None:
            return
        self._kept_bytes += len(data)
        if self._kept_bytes > MAX_BODY_KEPT_BYTES:
            self._kept = None
        else:
            self._kept.append(data)


def _content_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def _is_event_stream(headers: Headers) -> bool:
    return any(name == b"content-type" and value.lower().startswith(EVENT_STREAM) for name, value in headers)
