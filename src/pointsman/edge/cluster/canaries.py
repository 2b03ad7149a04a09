"""Canaries: sends those that are due, never two to one worker, and tells the ledger how they went."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from functools import partial

from pointsman.core.ledger.events import CanaryRead, CanaryResult, CanarySent
from pointsman.core.ledger.health.canaries import CanaryDue
from pointsman.core.model.worker import WorkerId
from pointsman.edge.cluster.canary import CanaryOutcome, CanaryTarget, Clock, send_canary

_log = logging.getLogger("pointsman.cluster")

MOST_IDLE = 4
"""On their way to idle workers at once; those in doubt do not wait for them."""
MOST = 32

Emit = Callable[[CanarySent | CanaryRead], None]
TargetOf = Callable[[WorkerId], CanaryTarget | None]


class Canaries:
    """Judges nothing: who is due says the ledger.

    `limit_s`: what one may take. Idle workers are asked up to `spread_s` later, so that many are not asked at once.
    """

    def __init__(
        self,
        due: Callable[[float], Iterable[CanaryDue]],
        target_of: TargetOf,
        emit: Emit,
        now_ms: Clock,
        rng: random.Random,
        *,
        limit_s: float,
        spread_s: float = 1.0,
    ) -> None:
        self._due = due
        self._target_of = target_of
        self._emit = emit
        self._now_ms = now_ms
        self._rng = rng
        self.limit_s = limit_s
        self._spread_s = spread_s
        self._closed = False
        self._tasks: dict[WorkerId, tuple[asyncio.Task[None], bool]] = {}

    def look(self) -> None:
        """Send those that are due. Call it about every second, on the event loop."""
        for due in () if self._closed else self._due(self._now_ms()):
            idle = sum(not urgent for _, urgent in self._tasks.values())
            full = len(self._tasks) >= MOST if due.urgent else idle >= MOST_IDLE
            if full or due.worker in self._tasks:
                continue
            task = asyncio.create_task(self._send(due), name=f"canary {due.worker}")
            self._tasks[due.worker] = (task, due.urgent)
            task.add_done_callback(partial(self._over, due.worker))

    def _over(self, worker: WorkerId, _: asyncio.Task[None]) -> None:
        self._tasks.pop(worker, None)

    async def _send(self, due: CanaryDue) -> None:
        if not due.urgent:
            await asyncio.sleep(self._spread_s * self._rng.random())
        target = self._target_of(due.worker)
        if target is None:
            return
        sent_ms = self._now_ms()
        self._emit(CanarySent(due.worker, sent_ms))
        try:
            outcome = await send_canary(target, self.limit_s, self._now_ms)
        except Exception:
            _log.exception("a canary for %s failed for a reason that nobody expected", due.worker)
            outcome = CanaryOutcome(CanaryResult.BUSY, "it could not be sent")
        self._emit(CanaryRead(due.worker, self._now_ms(), sent_ms, outcome.result, outcome.reason, outcome.total_ms))

    async def close(self) -> None:
        """Those under way are given up; the ledger hears nothing of them."""
        self._closed = True
        tasks = [task for task, _ in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
