"""PromptWork: prompts are made tokens at once where they are short, and beside the event loop where they are long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_THREADS = 2
"""So that many long prompts don't take all cores from the one that computes."""


class PromptWork:
    """Of one engine. `above_bytes`: bodies up to here are worked on at once; None: all are."""

    def __init__(self, above_bytes: int | None = None) -> None:
        self._above_bytes = above_bytes
        self._threads: ThreadPoolExecutor | None = None

    async def run(self, size_bytes: int, work: Callable[[], T]) -> T:
        """The result of `work` on a body of that size, or what it raises. Nobody waits for it once cancelled."""
        if self._above_bytes is None or size_bytes <= self._above_bytes:
            return work()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "prompts")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """What has not begun is not done any more. May be called twice."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
