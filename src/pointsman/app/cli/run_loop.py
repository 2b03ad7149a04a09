"""Runs a verb's coroutine until it ends or a signal asks it to."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from pointsman.app.cli.main import EXIT_INTERRUPTED

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_stopped(work: Coroutine[Any, Any, int]) -> int:
    """Run `work`; its result, or 0 when a signal ended it and it cleaned up.

    The first signal cancels `work`, so its `finally` clauses clean up; a second one ends the process at once.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_watch_signals(work))


async def _watch_signals(work: Coroutine[Any, Any, int]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            os._exit(EXIT_INTERRUPTED)
        stopping = True
        print("pointsman: stopping (again to stop at once)", file=sys.stderr, flush=True)
        task.cancel()

    for number in _STOP:
        loop.add_signal_handler(number, stop)
    try:
        return await task
    except asyncio.CancelledError:
        if stopping:
            return 0
        raise
    finally:
        for number in _STOP:
            loop.remove_signal_handler(number)
