"""TimedAttempt: an attempt that waits no longer than it may, and whose engine waits with a client that reads slowly."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.attempt import Attempt
from pointsman.edge.serving.breaks import DeadlineError, EngineTimeoutError
from pointsman.edge.serving.timeouts import Timeouts
from pointsman.edge.wire.http1_client import UpstreamConnection


class TimedAttempt(Attempt):
    """One timer an attempt, whatever comes.

    Args:
        deadline_s: when the request's total time is over, on the event loop's clock.
    """

    __slots__ = ("_connection", "_deadline_s", "_timeouts", "_timer", "_worker")

    def __init__(
        self,
        before: Attempt | None,
        worker: str,
        timeouts: Timeouts,
        *,
        deadline_s: float | None,
        ends_with_done: bool,
    ) -> None:
        super().__init__(before, ends_with_done=ends_with_done)
        self._worker = worker
        self._timeouts = timeouts
        self._deadline_s = deadline_s
        self._connection: UpstreamConnection | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    def _fail(self, error: PointsmanError) -> None:
        """It ends with this."""

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
        deadline = self._deadline_s
        if deadline is not None:
            seconds = min(seconds, max(0.0, deadline - self._loop.time()))
        self._timer = self._loop.call_later(seconds, callback)

    def _first_byte_late(self) -> None:
        if self._deadline_passed():
            return
        if self._paused:
            self._arm(self._timeouts.first_byte_s, self._first_byte_late)
        else:
            self._late(EngineTimeoutError(f"no answer within {self._timeouts.first_byte_s:g} s from {self._worker}"))

    def _check_idle(self) -> None:
        """Runs once an idle limit, not once a chunk: what came meanwhile moves the limit."""
        if self._deadline_passed():
            return
        left = self._last_data_s + self._timeouts.idle_s - self._loop.time()
        if self._paused:
            self._arm(self._timeouts.idle_s, self._check_idle)
        elif left <= 0:
            self._late(EngineTimeoutError(f"no byte for {self._timeouts.idle_s:g} s from {self._worker}"))
        else:
            self._arm(left, self._check_idle)

    def _deadline_passed(self) -> bool:
        deadline = self._deadline_s
        if deadline is None or self._loop.time() < deadline:
            return False
        self._late(DeadlineError(f"the request's total time is over from {self._worker}"))
        return True

    def _late(self, error: EngineTimeoutError) -> None:
        if self._connection is not None:
            self._connection.abort()
        self._fail(error)
