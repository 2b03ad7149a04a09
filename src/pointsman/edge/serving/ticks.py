"""Ticks: once a second everything that looks after itself gets its turn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

TICK_S = 1.0

_log = logging.getLogger("pointsman.serving")


class Ticks:
    """Calls each of `turns` every TICK_S, between `start` and `close`. One that fails keeps no other from it."""

    def __init__(self, *turns: Callable[[], None]) -> None:
        self._turns = turns
        self._task: asyncio.Task[None] | None = None
        self._failures: set[tuple[Callable[[], None], type[Exception]]] = set()
        self.late_s = 0.0
        """By how much the last one came too late: the event loop was busy with something else."""

    def start(self) -> None:
        """The first one comes after TICK_S."""
        self._task = asyncio.create_task(self._run(), name="ledger ticks")

    async def close(self) -> None:
        """No further one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.late_s = max(0.0, loop.time() - due_s)
            self.turn()

    def turn(self) -> None:
        """All of them, now."""
        for turn in self._turns:
            self._take(turn)

    def _take(self, turn: Callable[[], None]) -> None:
        try:
            turn()
        except Exception as error:
            # A fault in what is learned or looked after must not end all later ticks.
            known = (turn, type(error)) in self._failures
            self._failures.add((turn, type(error)))
            name = getattr(turn, "__qualname__", turn)
            _log.error("a tick failed at %s: %s", name, type(error).__name__, exc_info=None if known else error)
