"""Threads for what would hold the event loop too long, with a bound on what may wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pointsman.edge.prompts.errors import NotTokenizable, Reason

_T = TypeVar("_T")


class WorkerPool:
    """Runs jobs of a known size. A job given up by its caller still counts until its thread is done with it."""

    def __init__(self, threads: int, max_jobs: int, max_bytes: int) -> None:
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._jobs = 0
        self._bytes = 0
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="pointsman-prompts")

    @property
    def jobs(self) -> int:
        """Jobs that wait or run."""
        return self._jobs

    def submit(self, job: Callable[[], _T], size_bytes: int) -> Future[_T]:
        """Start a job. Raises NotTokenizable where too many wait. Cancelling it takes it out of the queue."""
        with self._lock:
            if self._jobs >= self._max_jobs or (self._jobs and self._bytes + size_bytes > self._max_bytes):
                raise NotTokenizable(
                    Reason.OVERLOADED, f"{self._jobs} prompts with {self._bytes} bytes wait for the tokenizer"
                )
            self._jobs += 1
            self._bytes += size_bytes
        try:
            future = self._executor.submit(job)
        except RuntimeError:  # closed
            self._leave(size_bytes)
            raise NotTokenizable(Reason.OVERLOADED, "the tokenizer is shutting down") from None
        future.add_done_callback(lambda done: self._leave(size_bytes))
        return future

    async def result(self, future: Future[_T], limit_s: float) -> _T:
        """What a job returns or raises. Raises NotTokenizable when it takes too long; it is not waited for then."""
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise NotTokenizable(Reason.TIMED_OUT, f"the prompt was not tokenized within {limit_s:g} s") from None

    def close(self) -> None:
        """Waiting jobs are cancelled; running ones end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _leave(self, size_bytes: int) -> None:
        with self._lock:
            self._jobs -= 1
            self._bytes -= size_bytes
