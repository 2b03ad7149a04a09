"""A load client for SSE streams that costs little: raw asyncio protocols, no parsing beyond what is counted.

`python -m harness.load_client JSON-of-LoadSpec` prints the JSON of a LoadReport. It is a process of its own, so that
its CPU time is not mixed up with anybody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import random
import sys
import time
from collections import deque
from typing import cast

import msgspec
import uvloop

from harness import process_stats
from harness.histogram import Histogram, Percentiles, percentiles_ms
from harness.load_spec import LoadReport, LoadSpec
from harness.prompts import chat_bodies, http_post

_DRAIN_S = 5.0
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_clock = time.perf_counter


class Tally:
    """What the connections of one run add up to; counts only while `measuring`, errors always."""

    def __init__(self, max_tokens: int, gaps: bool) -> None:
        self.max_tokens = max_tokens
        self.measuring = False
        self.requests = self.events = self.reads = self.errors = 0
        self.last_error: str | None = None
        self.ttft_s: list[float] = []
        self.e2e_s: list[float] = []
        self.gaps = Histogram() if gaps else None

    def error(self, what: str) -> None:
        self.errors += 1
        self.last_error = what


class LoadConnection(asyncio.Protocol):
    """One keep-alive connection with at most one request on it."""

    __slots__ = ("_body_left", "_due_s", "_events", "_first_s", "_head", "_last_s", "_reads", "_run", "_tail", "_tally",
                 "busy", "transport")  # fmt: skip

    def __init__(self, run: LoadRun) -> None:
        self._run = run
        self._tally = run.tally
        self.busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._run.idle(self)

    def send(self, request: bytes, due_s: float) -> None:
        """Ask; `due_s` is when the request should have gone out."""
        self.busy = True
        self._due_s = due_s
        self._first_s = self._last_s = 0.0
        self._events = self._reads = 0
        self._tail = b""
        self._head: bytes | None = None
        self._body_left: int | None = None
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = _clock()
        if not self.busy:
            return
        self._reads += 1
        if self._head is None:
            data = self._take_head(data)
            if self._head is None:
                return
        recent = self._tail + data
        self._tail = recent[-7:]
        # `data:` is 5 bytes: of the tail, 4 bytes can belong to one that was not counted yet
        events = recent[-len(data) - 4 :].count(b"data:") if data else 0
        if events:
            self._count(events, now)
        if self._ended(len(data)):
            self._finish(now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.busy and not self._run.closing:
            self._tally.error(f"connection lost after {self._events} events")
        self._run.lost(self)

    def _take_head(self, data: bytes) -> bytes:
        self._tail += data
        head, separator, rest = self._tail.partition(b"\r\n\r\n")
        if not separator:
            return b""
        self._head = head.lower()
        self._tail = b"\r\n"
        if b"\r\ncontent-length:" in self._head:
            self._body_left = int(self._head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        if not self._head.startswith(b"http/1.1 200"):
            self._tally.error(f"{head[:40]!r} {rest[:200]!r}")
        return rest

    def _count(self, events: int, now: float) -> None:
        tally = self._tally
        if tally.measuring:
            tally.events += events
            if tally.gaps is not None and self._first_s:
                tally.gaps.add(now - self._last_s)
                if events > 1:
                    tally.gaps.add(0.0, events - 1)
        if not self._first_s:
            self._first_s = now
        self._events += events
        self._last_s = now

    def _ended(self, size: int) -> bool:
        if self._body_left is None:
            return self._tail.endswith(_LAST_CHUNK)
        self._body_left -= size
        return self._body_left <= 0

    def _finish(self, now: float) -> None:
        tally = self._tally
        assert self._head is not None
        if self._head.startswith(b"http/1.1 200"):
            if self._events < tally.max_tokens:
                tally.error(f"stream ended after {self._events} of {tally.max_tokens} events")
            elif tally.measuring:
                tally.requests += 1
                tally.reads += self._reads
                tally.ttft_s.append(self._first_s - self._due_s)
                tally.e2e_s.append(now - self._due_s)
        self.busy = False
        self._run.idle(self)


class LoadRun:
    """One load run: opens connections, feeds them, measures a window, ends cleanly."""

    def __init__(self, spec: LoadSpec) -> None:
        self.spec = spec
        self.tally = Tally(spec.max_tokens, spec.gaps)
        self.closing = False
        self._connections: set[LoadConnection] = set()
        self._idle: deque[LoadConnection] = deque()
        self._waiting: deque[float] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        bodies = chat_bodies(
            model=spec.model,
            max_tokens=spec.max_tokens,
            count=spec.distinct,
            groups=spec.groups,
            prefix_words=spec.prefix_words,
            tail_words=spec.tail_words,
            seed=spec.seed,
            tail_seed=spec.tail_seed,
            history_messages=spec.history_messages,
        )
        self._requests = itertools.cycle([http_post(spec.port, spec.path, body) for body in bodies])

    async def measure(self) -> LoadReport:
        await self._open_all()
        arrivals = asyncio.ensure_future(self._arrive()) if self.spec.rate_per_s else None
        await asyncio.sleep(self.spec.warmup_s)
        report = await self._window()
        if arrivals:
            arrivals.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await arrivals
        await self._end()
        return msgspec.structs.replace(report, errors=self.tally.errors, last_error=self.tally.last_error)

    def idle(self, connection: LoadConnection) -> None:
        self._connections.add(connection)
        if self.closing:
            return
        if self.spec.rate_per_s is None:
            connection.send(next(self._requests), _clock())
        elif self._waiting:
            connection.send(next(self._requests), self._waiting.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: LoadConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if not self.closing:
            task = asyncio.ensure_future(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open_all(self) -> None:
        ramp = self.spec.ramp_per_s
        start = _clock()
        for i in range(self.spec.connections):
            if ramp:
                await asyncio.sleep(max(0.0, start + i / ramp - _clock()))
            await self._open()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: LoadConnection(self), "127.0.0.1", self.spec.port)
        except OSError as error:
            self.tally.error(f"connect: {error}")
            await asyncio.sleep(0.05)

    async def _arrive(self) -> None:
        assert self.spec.rate_per_s is not None
        rng = random.Random(self.spec.seed)
        due = _clock()
        while True:
            due += rng.expovariate(self.spec.rate_per_s)
            await asyncio.sleep(max(0.0, due - _clock()))
            if self._idle:
                # the one used last, as client pools do: a long idle connection acknowledges faster, which hides stalls
                self._idle.pop().send(next(self._requests), due)
            else:
                self._waiting.append(due)

    async def _window(self) -> LoadReport:
        watched = _pids(self.spec.watch)
        harness = _pids(self.spec.harness)
        tally = self.tally
        rss = [process_stats.rss_bytes(watched)]
        busy, helpers = process_stats.machine_busy_s(), process_stats.cpu_s(harness)
        cpu, own_cpu, start = process_stats.cpu_s(watched), time.process_time(), _clock()
        tally.measuring = True
        for second in range(1, math.ceil(self.spec.measure_s) + 1):
            await asyncio.sleep(start + min(second, self.spec.measure_s) - _clock())
            rss.append(process_stats.rss_bytes(watched))
        tally.measuring = False
        duration = _clock() - start
        cpu, own_cpu = process_stats.cpu_s(watched) - cpu, time.process_time() - own_cpu
        foreign = process_stats.machine_busy_s() - busy - (process_stats.cpu_s(harness) - helpers) - cpu - own_cpu
        requests = max(tally.requests, 1)
        return LoadReport(
            duration_s=duration,
            requests=tally.requests,
            errors=tally.errors,
            last_error=tally.last_error,
            open_streams=sum(connection.busy for connection in self._connections),
            waiting_arrivals=len(self._waiting),
            requests_per_s=tally.requests / duration,
            events_per_s=tally.events / duration,
            events_per_request=tally.events / requests,
            reads_per_request=tally.reads / requests,
            ttft_ms=percentiles_ms(tally.ttft_s),
            itl_ms=tally.gaps.percentiles_ms() if tally.gaps else Percentiles(0),
            e2e_ms=percentiles_ms(tally.e2e_s),
            client_cpu_share=own_cpu / duration,
            foreign_cores=max(0.0, foreign) / duration,
            watched_cpu_s=cpu,
            watched_cpu_share=cpu / duration,
            rss_bytes=tuple(rss),
        )

    async def _end(self) -> None:
        self.closing = True
        deadline = _clock() + _DRAIN_S
        while not self.spec.cut and any(connection.busy for connection in self._connections):
            if _clock() > deadline:
                self.tally.error("streams still open after the drain time")
                break
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.transport.abort() if self.spec.cut else connection.transport.close()
        await asyncio.sleep(0.05)


def _pids(roots: tuple[int, ...]) -> list[int]:
    return [pid for root in roots for pid in process_stats.tree(root)]


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=LoadSpec)
    run = LoadRun(spec)
    gc.freeze()
    gc.disable()  # a pause of ours would count as the front end's
    report = uvloop.run(run.measure())
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
