"""Streams of numbered tokens, always as many at once, each checked token by token.

`python -m harness.soak_client JSON-of-SoakSpec` prints a JSON line of SoakCounts every few seconds, the last one when
the time is over or it is told to stop (SIGTERM).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import re
import signal
import sys
import time
from collections import Counter
from typing import cast

import msgspec
import uvloop

from harness.histogram import Histogram, Percentiles
from harness.prompts import http_post

_NUMBER = re.compile(rb'"text":" (\d+)"')
_LAST_CHUNK = b"0\r\n\r\n"
_RETRY_S = 0.2
_clock = time.perf_counter


class SoakSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run."""

    port: int
    model: str
    streams: int
    seconds: float
    shortest: int
    """Tokens of the shortest answer; of others up to twice as many."""
    opened_per_s: float
    report_s: float = 5.0
    seed: int = 1


class SoakCounts(msgspec.Struct, kw_only=True):
    """Since the start, but for what is of the last interval."""

    at_s: float
    open: int
    begun: int
    finished: int
    failed: dict[str, int]
    """By what went wrong."""
    missing_tokens: int
    repeated_tokens: int
    tokens: int
    itl_ms: Percentiles
    """Of the last interval."""
    longest_gap_ms: float
    """The same: how long a stream paused at most."""


class Soak:
    """All streams."""

    def __init__(self, spec: SoakSpec) -> None:
        self.spec = spec
        self.rng = random.Random(spec.seed)
        self.numbers = itertools.count()
        self.begun = self.finished = self.tokens = self.missing = self.repeated = 0
        self.failed: Counter[str] = Counter()
        self.open: set[SoakStream] = set()
        self.gaps = Histogram()
        self.longest_s = 0.0
        self.closing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_s = _clock()

    async def run(self) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        opening = asyncio.create_task(self._open_all())
        end_s = self._start_s + self.spec.seconds
        while not stop.is_set() and _clock() < end_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(self.spec.report_s, max(0.0, end_s - _clock())))
            self._report()
        self.closing = True
        opening.cancel()
        for stream in tuple(self.open):
            stream.transport.abort()

    async def _open_all(self) -> None:
        for number in range(self.spec.streams):
            await asyncio.sleep(max(0.0, self._start_s + number / self.spec.opened_per_s - _clock()))
            await self.connect()

    async def connect(self) -> None:
        """One more stream, on a connection of its own."""
        loop = asyncio.get_running_loop()
        while not self.closing:
            try:
                await loop.create_connection(lambda: SoakStream(self), "127.0.0.1", self.spec.port)
            except OSError as error:
                self.failed[f"connect: {error.strerror}"] += 1
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def lost(self, stream: SoakStream) -> None:
        self.open.discard(stream)
        if not self.closing:
            task = asyncio.ensure_future(self.connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _report(self) -> None:
        counts = SoakCounts(
            at_s=round(_clock() - self._start_s, 1),
            open=len(self.open),
            begun=self.begun,
            finished=self.finished,
            failed=dict(self.failed),
            missing_tokens=self.missing,
            repeated_tokens=self.repeated,
            tokens=self.tokens,
            itl_ms=self.gaps.percentiles_ms(),
            longest_gap_ms=round(self.longest_s * 1e3, 1),
        )
        self.gaps, self.longest_s = Histogram(), 0.0
        sys.stdout.buffer.write(msgspec.json.encode(counts) + b"\n")
        sys.stdout.buffer.flush()


class SoakStream(asyncio.Protocol):
    """One connection: a stream, then the next one."""

    __slots__ = ("_data", "_done", "_error", "_expected", "_head", "_last_s", "_soak", "_wanted", "transport")

    def __init__(self, soak: Soak) -> None:
        self._soak = soak

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._soak.open.add(self)
        self._ask()

    def _ask(self) -> None:
        soak = self._soak
        shortest = soak.spec.shortest
        self._wanted = soak.rng.randint(shortest, 2 * shortest)
        self._expected = 0
        self._last_s = 0.0
        self._data = b""
        self._head = self._done = self._error = False
        soak.begun += 1
        body = {
            "model": soak.spec.model,
            "prompt": f"conversation {next(soak.numbers)}",
            "max_tokens": self._wanted,
            "stream": True,
            "temperature": 0,
        }
        self.transport.write(http_post(soak.spec.port, "/v1/completions", msgspec.json.encode(body)))

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._head and not self._take_head():
            return
        whole, found, rest = self._data.rpartition(b"\n\n")
        if found:
            self._tokens(_NUMBER.findall(whole))
            self._done = self._done or b"[DONE]" in whole
            self._error = self._error or b'"error"' in whole
        if rest.endswith(_LAST_CHUNK):
            self._ended()
        else:
            self._data = rest if found else self._data

    def _take_head(self) -> bool:
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(f"status {head[9:12].decode()}")
            return False
        self._head, self._data = True, rest
        return True

    def _tokens(self, numbers: list[bytes]) -> None:
        soak, now_s = self._soak, _clock()
        if numbers and self._last_s:
            gap_s = now_s - self._last_s
            soak.gaps.add(gap_s)
            soak.longest_s = max(soak.longest_s, gap_s)
        for raw in numbers:
            number = int(raw)
            if number > self._expected:
                soak.missing += number - self._expected
            elif number < self._expected:
                soak.repeated += 1
                continue
            self._expected = number + 1
        soak.tokens += len(numbers)
        if numbers:
            self._last_s = now_s

    def _ended(self) -> None:
        soak = self._soak
        if self._error:
            self._fail("error event")
        elif not self._done:
            self._fail("no [DONE]")
        elif self._expected != self._wanted:
            soak.missing += max(0, self._wanted - self._expected)
            self._fail("another length")
        else:
            soak.finished += 1
            if soak.closing:
                self.transport.close()
            else:
                self._ask()

    def _fail(self, what: str) -> None:
        self._soak.failed[what] += 1
        self._head, self._wanted = True, -1
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._soak.closing and self._wanted >= 0:
            self._soak.failed["connection lost"] += 1
        self._soak.lost(self)


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=SoakSpec)
    gc.freeze()
    uvloop.run(Soak(spec).run())


if __name__ == "__main__":
    main()
