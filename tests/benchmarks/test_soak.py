"""The soak's engine numbers its tokens and goes on where it is told to; its client sees what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import mock_answers
from harness.mock_engine import Pacer
from harness.numbered_engine import FIRST_ID, Engines, NumberedConnection
from harness.soak_client import Soak, SoakSpec
from soak import _slope, has_place, summary


def spec(port: int) -> SoakSpec:
    return SoakSpec(port=port, model="m", streams=2, seconds=60, shortest=10, opened_per_s=1000)


async def serve(make: Callable[[], asyncio.Protocol]) -> tuple[asyncio.Server, int]:
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def asked(port: int, **body: object) -> list[dict[str, object]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps({"stream": True, **body}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw))
    answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 10)
    writer.close()
    assert b"data: [DONE]" in answer
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line[6:])["choices"][0] for line in lines]


async def test_tokens_are_numbered_and_go_on_from_ids() -> None:
    pacer = Pacer(asyncio.get_running_loop())
    server, port = await serve(lambda: NumberedConnection(pacer))
    first = await asked(port, prompt="x", max_tokens=3, return_token_ids=True)
    assert [one["text"] for one in first] == [" 0", " 1", " 2", ""]
    ids = [one for choice in first for one in choice["token_ids"]]  # type: ignore[attr-defined]
    assert ids == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2]
    prompt = [*first[0]["prompt_token_ids"], *ids]  # type: ignore[misc]
    second = await asked(port, prompt=prompt, max_tokens=2)
    assert [one["text"] for one in second] == [" 3", " 4", ""]
    assert second[0]["token_ids"] is None
    server.close()


class Faulty(asyncio.Protocol):
    """Answers as it is told, whatever is asked."""

    def __init__(self, tokens: list[int], end: bytes) -> None:
        self._tokens = tokens
        self._end = end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for number in self._tokens:
            piece = b'data: {"choices":[{"text":" %d"}]}\n\n' % number
            head = mock_answers.STREAM_HEAD if number == self._tokens[0] else b""
            self._transport.write(head + b"%x\r\n%b\r\n" % (len(piece), piece))  # type: ignore[attr-defined]
        self._transport.write(self._end)  # type: ignore[attr-defined]


ERROR = b'10\r\ndata: {"error"}\n\n\r\n0\r\n\r\n'


@pytest.mark.parametrize(
    ("tokens", "end", "failure", "missing", "repeated"),
    [
        ([0, 1, 2, 2, 3], ERROR, "error event", 0, 1),
        ([0, 1, 4], mock_answers.DONE, "another length", 2, 0),
        ([0, 1], b"0\r\n\r\n", "no [DONE]", 0, 0),
    ],
)
async def test_what_is_wrong_is_seen(tokens: list[int], end: bytes, failure: str, missing: int, repeated: int) -> None:
    server, port = await serve(lambda: Faulty(tokens, end))
    soak = Soak(spec(port))
    await soak.connect()
    async with asyncio.timeout(10):
        while not soak.failed[failure]:
            await asyncio.sleep(0.005)
    soak.closing = True
    assert soak.missing >= missing
    assert bool(soak.missing) == bool(missing) or failure == "another length"
    assert bool(soak.repeated) == bool(repeated)
    for stream in tuple(soak.open):
        stream.transport.abort()
    server.close()


async def test_whole_streams_count_as_finished_and_are_followed_by_others() -> None:
    pacer = Pacer(asyncio.get_running_loop())
    server, port = await serve(lambda: NumberedConnection(pacer))
    soak = Soak(spec(port))
    await soak.connect()
    async with asyncio.timeout(10):
        while soak.finished < 3:
            await asyncio.sleep(0.005)
    soak.closing = True
    assert (soak.missing, soak.repeated, dict(soak.failed)) == (0, 0, {})
    for stream in tuple(soak.open):
        stream.transport.abort()
    server.close()


def row(at_s: float, rss_mb: float) -> dict[str, object]:
    return {
        "at_s": at_s,
        "rss_mb": rss_mb,
        "cpu_s": at_s / 2,
        "harness_cpu_s": at_s / 4,
        "begun": 10,
        "finished": 8,
        "failed": {"status 503": 2},
        "missing_tokens": 0,
        "repeated_tokens": 0,
        "tokens": 100,
        "itl_ms": {"p99": at_s},
        "longest_gap_ms": 5.0,
    }


def test_memory_counts_from_when_all_streams_are_open() -> None:
    rows = [row(at_s, mb) for at_s, mb in ((5, 90), (60, 100), (120, 101), (180, 102))]
    counters = {f'pointsman_migrations_total{{mechanism="token_ids",outcome="{how}"}}': 7.0 for how in ("begun", "x")}
    facts = summary({"rows": rows, "counters": counters, "killed": 2, "in_flight_after": {"running": 0}})
    assert facts["rss_slope_mb_per_min"] == pytest.approx(1.0)
    assert (facts["rss_settled_mb"], facts["streams_failed"], facts["migrations_begun"]) == (101, 2, 7.0)
    assert (facts["core_busy"], facts["harness_core_busy"]) == (0.5, 0.25)
    assert _slope([row(1, 2)]) == 0.0


def test_engines_that_are_killed_come_back() -> None:
    reader, writer = os.pipe()

    def serve(port: int) -> None:
        os.write(writer, b"%d" % port)
        time.sleep(60)

    engines = Engines([1, 2], 5.0, serve)
    try:
        engines.turn(0.0)
        began = {os.read(reader, 1), os.read(reader, 1)}
        assert began == {b"1", b"2"}
        engines._on_signal(0, None)
        gone = 1.0
        while not engines._due_s:
            engines.turn(gone)
            time.sleep(0.01)
        assert engines._due_s == {1: gone + 5.0}
        engines.turn(gone + 4.9)
        assert list(engines._pids) == [2]
        engines.turn(gone + 5.0)
        assert os.read(reader, 1) == b"1"
    finally:
        engines.stop()
        os.close(reader)
        os.close(writer)


def test_a_page_without_a_place_is_noticed_before(tmp_path: Path) -> None:
    page = tmp_path / "p.md"
    assert not has_place(page)
    page.write_text("nothing")
    assert not has_place(page)
    page.write_text("<!-- begin soak -->\n<!-- end soak -->\n")
    assert has_place(page)
