"""Long work beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """The result of `work`, or what it raises, from a thread that nobody waits for.

    asyncio's own threads are waited for when the loop ends: a Ctrl-C while gigabytes are read would take as long.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():  # cancelled
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where T has it

    def run() -> None:
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name="embedded loading", daemon=True).start()
    return await done
