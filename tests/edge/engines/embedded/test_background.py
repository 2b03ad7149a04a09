from __future__ import annotations

import asyncio
import threading

import pytest

from pointsman.edge.engines.embedded.background import in_background


async def test_results_and_errors_come_back() -> None:
    assert await in_background(lambda: 7) == 7

    def fails() -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await in_background(fails)


def test_the_loop_ends_without_waiting_for_what_is_not_wanted_any_more() -> None:
    began, may_end = threading.Event(), threading.Event()

    def works() -> None:
        began.set()
        may_end.wait(20)

    async def cancelled() -> None:
        task = asyncio.ensure_future(in_background(works))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "embedded loading"]
    may_end.set()
    thread.join(20)
    assert not thread.is_alive()
