"""Hostile requests: each has its verdict, and whatever is accepted can be read in one way only."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.http1_connection import ServerConnection
from pointsman.edge.wire.http1_server import HttpServer, ServerLimits
from support.http_corpus import corpus, unescaped
from support.strict_http import read_requests

CASES = corpus("requests")
LIMITS = ServerLimits(max_body_bytes=1_000_000)


class Read:
    """What a server made of some bytes."""

    def __init__(self, transport_type: type, pieces: list[bytes]) -> None:
        self.handled: list[tuple[str, bytes, bytes]] = []
        self.crashed = False
        asyncio.run(self._feed(transport_type, pieces))

    async def _feed(self, transport_type: type, pieces: list[bytes]) -> None:
        async def handler(request, responder) -> None:
            self.handled.append((request.method, request.target, request.body))
            responder.send(200, (), b"")

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: setattr(self, "crashed", True))
        transport = transport_type()
        connection = ServerConnection(HttpServer(handler, LIMITS), loop)
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        for _ in range(100):  # handlers end one after the other
            await asyncio.sleep(0)
        self.statuses = [int(head.split(b" ")[1]) for head in transport.written if head.startswith(b"HTTP/1.1 ")]
        self.refusal = next((status for status in self.statuses if status not in (100, 200)), None)
        self.closed = transport.closed
        connection.connection_lost(None)
        server_tick = connection._server._tick
        if server_tick is not None:
            server_tick.cancel()


def expected(verdict: str) -> tuple[list[tuple[str, bytes, bytes]], int | None]:
    if verdict == "waits":
        return [], None
    if verdict.isdigit():
        return [], int(verdict)
    requests, _, status = verdict.partition(" then ")
    handled = []
    for request in requests.split(" & "):
        method, target, *body = request.split(" ", 2)
        handled.append((method, target.encode(), unescaped(body[0]) if body else b""))
    return handled, int(status) if status else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [1, 3, 1_000_000])
def test_every_case_has_its_verdict_in_any_pieces(fake_transport_type, case, size) -> None:
    pieces = [case.text[at : at + size] for at in range(0, len(case.text), size)]
    read = Read(fake_transport_type, pieces)
    assert (read.handled, read.refusal) == expected(case.verdict)
    assert not read.crashed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_strict_reader_agrees_with_every_verdict(case) -> None:
    requests, wrong = read_requests(case.text)
    handled, refusal = expected(case.verdict)
    agreed = [(request.method.decode(), request.target, request.body) for request in requests]
    assert agreed[: len(handled)] == handled
    if refusal in (400, 505):
        # what is refused for its form is refused by both, but for methods and limits, which are not of the form
        assert wrong or len(agreed) == len(handled) + 1 or b"\r\n\r\n" not in case.text


def mutated(draw, text: bytes) -> bytes:
    """A few bytes or lines of a message left out, doubled, exchanged or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        if not text:
            break
        at = draw(st.integers(0, len(text) - 1))
        end = min(len(text), at + draw(st.integers(1, 12)))
        how = draw(st.sampled_from(["drop", "double", "insert", "replace", "line"]))
        if how == "drop":
            text = text[:at] + text[end:]
        elif how == "double":
            text = text[:end] + text[at:]
        elif how == "insert":
            text = text[:at] + draw(SNIPPETS) + text[at:]
        elif how == "replace":
            text = text[:at] + draw(SNIPPETS) + text[end:]
        else:
            lines = text.split(b"\r\n")
            lines.insert(draw(st.integers(0, len(lines))), draw(LINES))
            text = b"\r\n".join(lines)
    return text


SNIPPETS = st.one_of(
    st.sampled_from(
        [
            b"\r",
            b"\n",
            b"\r\n",
            b"\0",
            b" ",
            b"\t",
            b":",
            b",",
            b";",
            b"0",
            b"f",
            b"+",
            b"-",
            b"\x0b",
            b"\x80",
            b"\r\n\r\n",
        ]
    ),
    st.binary(min_size=1, max_size=3),
)
LINES = st.sampled_from(
    [
        b"Content-Length: 3",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding:chunked",
        b"Transfer-Encoding: x",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Upgrade: websocket",
        b"Connection: upgrade",
        b"Host: i",
        b"Expect: 100-continue",
        b"",
        b"0",
        b"3",
        b"abc",
        b"GET /x HTTP/1.1",
    ]
)


@st.composite
def conversations(draw) -> bytes:
    """Two messages of the corpus in a row, mutated."""
    first, second = draw(st.sampled_from(CASES)), draw(st.sampled_from(CASES))
    return mutated(draw, first.text + second.text)


@settings(max_examples=4000, deadline=None)
@given(conversations(), st.lists(st.integers(0, 400), max_size=5))
@example(b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: 1\r\n\r\naGET", [3])
def test_what_is_accepted_can_be_read_in_one_way_only(fake_transport_type, text, cuts) -> None:
    whole = Read(fake_transport_type, [text])
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = Read(fake_transport_type, [text[a:b] for a, b in pairwise(places)])
    assert not whole.crashed
    assert not pieces.crashed
    assert (whole.handled, whole.refusal, whole.closed) == (pieces.handled, pieces.refusal, pieces.closed)
    strict, _ = read_requests(text)
    agreed = [(request.method.decode(), request.target, request.body) for request in strict]
    assert whole.handled == agreed[: len(whole.handled)]
    assert 500 not in whole.statuses


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=6))
def test_no_bytes_crash_the_server(fake_transport_type, pieces) -> None:
    read = Read(fake_transport_type, [piece for piece in pieces if piece])
    assert not read.crashed
    assert 500 not in read.statuses
