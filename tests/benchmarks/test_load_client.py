from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from harness import mock_answers
from harness.load_client import LoadConnection, LoadRun
from harness.load_spec import LoadReport, LoadSpec
from harness.mock_engine import Pacer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the harness reads /proc and pins with taskset")

StartServer = Callable[[Callable[[], asyncio.Protocol]], Awaitable[int]]

SPEC = LoadSpec(
    port=0, model=mock_answers.MODEL, connections=4, warmup_s=0.05, measure_s=0.2, max_tokens=10, distinct=16
)


TRIES = 20
"""Fractions of a second are measured: a machine that gives this process no time in them is measured again."""


async def _measure(port: int, usual: Callable[[LoadReport], bool], **changes: Any) -> LoadReport:
    """The first report of a moment in which the machine was no obstacle, or the last one."""
    for _ in range(TRIES):
        report = await LoadRun(msgspec.structs.replace(SPEC, port=port, **changes)).measure()
        if usual(report):
            break
    return report


async def test_closed_loop_counts_requests_and_events(engine: int) -> None:
    report = await _measure(engine, lambda report: report.requests > 8)
    assert report.errors == 0
    assert report.requests > 8
    assert report.open_streams == 4
    assert report.events_per_request == pytest.approx(13, abs=4)  # role, 10 tokens, finish, [DONE]; the edges count too
    assert report.ttft_ms.count == report.requests
    assert report.e2e_ms.p50 is not None
    assert report.ttft_ms.p50 is not None
    assert report.e2e_ms.p50 > report.ttft_ms.p50 > 0
    assert report.cpu_us_per_request == 0.0  # nobody was watched


async def test_open_loop_keeps_its_rate(engine: int, pacer: Pacer) -> None:
    pacer.itl_ms = 4

    def usual(report: LoadReport) -> bool:
        return report.waiting_arrivals == 0 and 25 <= report.requests <= 80

    open_loop: dict[str, Any] = {"rate_per_s": 100.0, "connections": 16, "measure_s": 0.5, "warmup_s": 0.1}
    report = await _measure(engine, usual, **open_loop)
    assert report.errors == 0
    assert usual(report), report


async def test_the_pace_is_seen(engine: int, pacer: Pacer) -> None:
    pacer.itl_ms = 40  # against which it hardly matters how long this process waits for a processor

    def usual(report: LoadReport) -> bool:
        return report.itl_ms.p50 is not None and 20 < report.itl_ms.p50 < 80

    report = await _measure(engine, usual, max_tokens=8, gaps=True)
    assert report.errors == 0
    assert usual(report), report


async def test_arrivals_without_a_free_connection_wait_and_count(engine: int, pacer: Pacer) -> None:
    pacer.itl_ms = 5

    def usual(report: LoadReport) -> bool:
        late_ms = report.ttft_ms.max  # from when it was due
        return report.waiting_arrivals > 10 and late_ms is not None and late_ms > 50

    report = await _measure(engine, usual, rate_per_s=200.0, connections=2, measure_s=0.4)
    assert usual(report), report


async def test_streams_can_be_cut_without_an_error(engine: int, pacer: Pacer) -> None:
    pacer.itl_ms = 5

    def usual(report: LoadReport) -> bool:
        return 100 < report.events_per_s < 1_000  # 4 streams, one event in 5 ms each; less on a busy machine

    report = await _measure(engine, usual, max_tokens=10_000, cut=True, ramp_per_s=200.0, gaps=True)
    assert (report.errors, report.open_streams, report.requests) == (0, 4, 0)
    assert usual(report), report


async def test_refusals_are_errors_and_not_requests(start_server: StartServer) -> None:
    class Refusing(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(mock_answers.json_answer({"error": "full"}, b"503 Service Unavailable"))

    report = await _measure(await start_server(Refusing), lambda report: report.errors > 4)
    assert report.requests == 0
    assert report.errors > 4
    assert "503" in str(report.last_error)


async def test_a_stream_that_ends_early_or_breaks_is_an_error(start_server: StartServer) -> None:
    short = mock_answers.STREAM_HEAD + mock_answers.ROLE + mock_answers.stream_end(True, b"")

    class Short(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            self.asked = 0

        def data_received(self, data: bytes) -> None:
            self.asked += 1
            self.transport.write(short if self.asked == 1 else mock_answers.STREAM_HEAD + mock_answers.ROLE)
            if self.asked == 2:
                self.transport.close()

    port, seen = await start_server(Short), list[str]()
    for _ in range(TRIES):
        run = LoadRun(msgspec.structs.replace(SPEC, port=port, connections=1))
        run.tally.error = seen.append  # type: ignore[method-assign]
        await run.measure()
        if len(seen) >= 2:
            break
        seen.clear()
    assert seen[0] == "stream ended after 3 of 10 events"
    assert seen[1] == "connection lost after 1 events"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100, 10_000])
async def test_events_are_counted_however_the_bytes_are_split(size: int) -> None:
    run = LoadRun(msgspec.structs.replace(SPEC, rate_per_s=1.0))
    connection = LoadConnection(run)
    transport = _FakeTransport()
    connection.connection_made(transport)
    run.tally.measuring = True
    answer = mock_answers.STREAM_HEAD + mock_answers.ROLE + mock_answers.TOKEN * 10 + mock_answers.stream_end(True, b"")
    connection.send(b"request", due_s=0.0)
    for start in range(0, len(answer), size):
        assert connection.busy
        connection.data_received(answer[start : start + size])
    assert not connection.busy
    assert (run.tally.requests, run.tally.events, run.tally.errors) == (1, 13, 0)


class _FakeTransport(asyncio.Transport):
    def write(self, data: Any) -> None:
        pass
