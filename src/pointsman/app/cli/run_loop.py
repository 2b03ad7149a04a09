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
from pointsman.app.cli.signals import Signals

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_until_stopped(work: Coroutine[Any, Any, int], signals: Signals | None = None) -> int:
    """Run `work`; its result, or 0 when a signal ended it and it cleaned up.

    The first signal cancels `work`, so its `finally` clauses clean up; a second one ends the process at once. With
    `signals` the second asks for haste where that is known, and SIGHUP to read the configuration again.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_watch_signals(work, signals or Signals()))


async def _watch_signals(work: Coroutine[Any, Any, int], signals: Signals) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    asked = 0

    def stop(number: signal.Signals) -> None:
        nonlocal asked
        if asked and signals.supervised and number != signal.SIGINT:
            return
        asked += 1
        if asked == 1:
            _say("stopping (again to stop at once)")
            task.cancel()
        elif asked == 2 and signals.hurry is not None:
            _say("stopping at once: what still runs is cut")
            signals.hurry()
        else:
            os._exit(EXIT_INTERRUPTED)

    def hang_up() -> None:
        if signals.reload is None or asked or signals.hung_up():
            stop(signal.SIGHUP)
        else:
            signals.reload()

    for number in _STOP:
        loop.add_signal_handler(number, *((hang_up,) if number == signal.SIGHUP else (stop, number)))
    try:
        return await task
    except asyncio.CancelledError:
        if asked:
            return 0
        raise
    finally:
        for number in _STOP:
            loop.remove_signal_handler(number)


def _say(text: str) -> None:
    # The line and its end in one piece: several front ends say the same at once.
    sys.stderr.write(f"pointsman: {text}\n")
    sys.stderr.flush()
