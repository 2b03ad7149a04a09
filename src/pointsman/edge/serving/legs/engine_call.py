"""EngineCall: one whole answer of an engine beside the attempt that answers the client, such as a prefill leg's."""

from __future__ import annotations

import asyncio

from pointsman.core.model.errors import PointsmanError
from pointsman.core.model.fault import Fault
from pointsman.core.model.worker import WorkerId
from pointsman.edge.serving.breaks import DeadlineError, EngineTimeoutError, fault_of, fault_of_status
from pointsman.edge.wire.headers import Headers, first_value
from pointsman.edge.wire.http1_client import (
    Origin,
    UpstreamClosed,
    UpstreamConnectError,
    UpstreamConnection,
    UpstreamError,
    UpstreamPool,
    UpstreamProtocolError,
)

MOST_ANSWER_BYTES = 16 * 2**20
"""Answers hold one token, an object, and the prompt's ids at most."""
STALE_WITHIN_S = 0.05
"""A kept connection that ends this soon after a request was written to it had been closed before."""


class EngineCall:
    """Sent once by `run`, which returns when it is over, however it went.

    Args:
        limit_s: for the whole answer.
        deadline_s: when the time of the client's request is over, on the event loop's clock.
    """

    def __init__(
        self,
        worker: WorkerId,
        origin: Origin,
        head: bytes,
        body: bytes,
        *,
        limit_s: float,
        deadline_s: float | None = None,
    ) -> None:
        self.worker = worker
        self.status = 0
        self.headers: Headers = ()
        self.error: PointsmanError | None = None
        """Why there is no whole answer."""
        self.sent = False
        """There was a connection to send it over."""
        self._origin, self._head, self._body = origin, head, body
        self._limit_s, self._deadline_s = limit_s, deadline_s
        self._parts: list[bytes] = []
        self._bytes = 0
        self._connection: UpstreamConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = self._loop.time()

    async def run(self, pool: UpstreamPool) -> None:
        """Send it and wait for its end. Cancelled, the engine sees its client leave."""
        self._arm()
        try:
            await self._send(pool, fresh=False)
            error = self.error
            stale = isinstance(error, UpstreamClosed) and error.reused and not error.received
            if stale and self.waited_s < STALE_WITHIN_S:
                self.error, self._over = None, self._loop.create_future()
                await self._send(pool, fresh=True)
        finally:
            self.abandon()

    async def _send(self, pool: UpstreamPool, *, fresh: bool) -> None:
        try:
            connection = await pool.connect(self._origin, fresh=fresh)
        except UpstreamConnectError as error:
            self._end(error)
            return
        if self._over.done():  # it was interrupted meanwhile
            connection.abort()
            return
        self._connection, self._sent_s, self.sent = connection, self._loop.time(), True
        connection.send(self._head, self._body, self)
        await self._over

    # ---- what came of it

    @property
    def over(self) -> bool:
        """It was answered, or failed."""
        return self._over.done()

    @property
    def answered(self) -> bool:
        """With success."""
        return self.over and self.error is None and 200 <= self.status < 300

    @property
    def body(self) -> bytes:
        """Of the answer."""
        return b"".join(self._parts)

    @property
    def fault(self) -> Fault | None:
        """In which way the worker failed; None: it did not."""
        return fault_of_status(self.status) if self.error is None else fault_of(self.error)

    @property
    def reason(self) -> str:
        """What went wrong, without the engine's own words, which may hold the prompt."""
        return f"it answered {self.status}" if self.error is None else str(self.error)

    @property
    def retry_after_ms(self) -> float | None:
        """For how long the engine asked to be left alone, where it answered that it is overloaded."""
        asked = first_value(self.headers, b"retry-after") if self.status in (429, 503) else None
        return 1000.0 * int(asked) if asked is not None and asked.isdigit() and len(asked) < 6 else None

    @property
    def waited_s(self) -> float:
        """Since it was sent."""
        return self._loop.time() - self._sent_s

    # ---- what can be done to it

    def interrupt(self, error: PointsmanError) -> None:
        """It ends with this, and the engine sees its client leave. Does nothing once it ended."""
        if not self._over.done():
            self._end(error)
            self.abandon()

    def abandon(self) -> None:
        """Nobody waits for it any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # ---- time limits

    def _arm(self) -> None:
        seconds, deadline_s = self._limit_s, self._deadline_s
        if deadline_s is not None:
            seconds = min(seconds, max(0.0, deadline_s - self._loop.time()))
        self._timer = self._loop.call_later(seconds, self._late)

    def _late(self) -> None:
        deadline_s = self._deadline_s
        if deadline_s is not None and self._loop.time() >= deadline_s:
            self.interrupt(DeadlineError(f"the request's total time is over from {self.worker}"))
        else:
            self.interrupt(EngineTimeoutError(f"no whole answer within {self._limit_s:g} s from {self.worker}"))

    # ---- callbacks of the connection

    def on_head(self, status: int, headers: Headers) -> None:
        """Its status."""
        self.status, self.headers = status, headers

    def on_data(self, data: bytes) -> None:
        """A part of its body."""
        self._bytes += len(data)
        if self._bytes > MOST_ANSWER_BYTES:
            self.interrupt(UpstreamProtocolError(f"{self.worker} sent more than {MOST_ANSWER_BYTES} bytes"))
        else:
            self._parts.append(data)

    def on_end(self) -> None:
        """It is whole."""
        self._connection = None
        self._end(None)

    def on_error(self, error: UpstreamError) -> None:
        """It will not be whole."""
        self._connection = None
        self._end(error)

    def _end(self, error: PointsmanError | None) -> None:
        if not self._over.done():
            self.error = error
            self._over.set_result(None)
