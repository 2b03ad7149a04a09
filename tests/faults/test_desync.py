"""A whole front end between hostile clients and hostile engines: every request reaches the engine as itself or not at
all, and every answer goes to the request that it belongs to."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.cluster.members import WorkerSource
from pointsman.edge.serving.frontend import Frontend
from pointsman.edge.serving.settings import FrontendSettings
from support.http_corpus import corpus
from support.strict_http import NotStrictError, read_answer, read_requests
from support.virtual.loop import VirtualLoop, run_virtual
from support.virtual.network import HOST

ENGINE, FRONT, PORT = "10.0.0.1", "10.0.1.1", 8000
ROUTE = b"/v1/completions"


KNOWN = {b"/v1/models": b'{"data": [{"id": "m", "max_model_len": 999}]}', b"/version": b'{"version": "0.32.0"}'}


class RawEngine(asyncio.Protocol):
    """Reads strictly whatever it is sent, keeps it, and answers with the mark that it finds in the body."""

    kept: list[bytes]
    wrong: list[bytes]
    answers: list[bytes]
    """What it says to the next requests for tokens instead of what it should."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._text = b""

    def data_received(self, data: bytes) -> None:
        self._text += data
        requests, wrong = read_requests(self._text)
        if wrong:
            self.wrong.append(self._text)
            self.transport.abort()
            return
        if not requests:
            return
        if len(requests) > 1:
            self.wrong.append(self._text)
        self._text = b""
        request = requests[0]
        if request.method == b"GET":
            self._say(KNOWN.get(request.target, b"{}"))
            return
        if not any(name == b"x-request-id" for name, _ in request.fields):
            self._say(b"{}", b"404 Not Found")  # a probe
            return
        self.kept.append(request.body)
        if self.answers:
            self.transport.write(self.answers.pop(0))
            asyncio.get_running_loop().call_later(1.0, self.transport.close)
        else:
            self._say(b'{"mark": "%b", "usage": {"prompt_tokens": 1}}' % mark_of(request.body))

    def _say(self, body: bytes, status: bytes = b"200 OK") -> None:
        self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


class Ear(asyncio.Protocol):
    """Keeps what a client hears, also where a reset ends it."""

    def __init__(self) -> None:
        self.heard = b""

    def data_received(self, data: bytes) -> None:
        self.heard += data


def mark_of(body: bytes) -> bytes:
    """Of the request that this is the body of, or of its answer."""
    found = re.search(rb"mark-\w+", body)
    return found[0] if found else b"none"


def played(reads: list[bytes], answers: Sequence[bytes] = ()) -> tuple[bytes, list[bytes], list[bytes], list[str]]:
    """What a client hears that sends these pieces, what the engine kept, what it found wrong, what is still counted."""

    async def main(loop: VirtualLoop) -> Any:
        network = loop.network
        kept: list[bytes] = []
        wrong: list[bytes] = []
        engine = type("Engine", (RawEngine,), {"kept": kept, "wrong": wrong, "answers": list(answers)})
        token = HOST.set(ENGINE)
        await loop.create_server(engine, ENGINE, PORT)
        HOST.reset(token)
        source = WorkerSource("e", f"http://{ENGINE}:{PORT}", kind="openai", models=("m",))
        front = FrontendSettings(sources=(source,), host=FRONT, port=80, admin_host=FRONT, admin_port=81, seed=1)
        token = HOST.set(FRONT)
        frontend = Frontend(front, lambda: loop.time() * 1000)
        await frontend.start()
        HOST.reset(token)
        while not any(worker.usable for worker in frontend.ledger.snapshot().workers):
            await asyncio.sleep(0.01)
        ear = Ear()
        end = await network.connect(FRONT, 80)
        end.begin(ear)
        for piece in reads:
            end.write(piece)
            await asyncio.sleep(0.01)
        await asyncio.sleep(3.0)
        end.abort()
        await asyncio.sleep(1.0)
        fleet = frontend.ledger.snapshot()
        left = [str(worker.running) for worker in fleet.workers if worker.running]
        await frontend.close()
        return ear.heard, kept, wrong, left

    return run_virtual(main)


def answers_of(heard: bytes) -> list[tuple[int, bytes]]:
    """Status and body of all answers that a client heard, read strictly."""
    found = []
    while heard:
        answer = read_answer(heard)
        if answer is None:
            break
        found.append((answer.status, answer.body))
        heard = heard[answer.end :]
    return found


def request(mark: str, *, chunked: bool = False, more: bytes = b"", **fields: Any) -> bytes:
    """A good request whose body has a mark."""
    body = json.dumps({"model": "m", "prompt": mark} | fields).encode()
    head = b"POST %b HTTP/1.1\r\nHost: h\r\n%b" % (ROUTE, more)
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    cut = len(body) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]))
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


SNIPPETS = st.one_of(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b" ", b"0", b"+", b"5\r\n", b"\r\n\r\n", b"0\r\n\r\n"]),
    st.binary(min_size=1, max_size=2),
)
LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: x",
        b"Connection: close",
        b"Connection: content-length",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"X-Request-Id: mark-9\t",
    ]
)


@st.composite
def conversations(draw) -> bytes:
    """Some requests in a row, of which bytes and lines were damaged."""
    text = b"".join(request(f"mark-{n}", chunked=draw(st.booleans())) for n in range(draw(st.integers(2, 4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text) - 1))
        if draw(st.booleans()):
            end = at + draw(st.integers(0, 6))
            text = text[:at] + draw(SNIPPETS) + text[end:]
        else:
            lines = text.split(b"\r\n")
            lines.insert(draw(st.integers(1, len(lines) - 1)), draw(LINES))
            text = b"\r\n".join(lines)
    return text


@settings(max_examples=150, deadline=None)
@given(conversations(), st.lists(st.integers(1, 500), max_size=3))
def test_what_reaches_the_engine_is_what_the_client_sent_request_by_request(text, cuts) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    heard, kept, wrong, left = played([text[a:b] for a, b in pairwise(places)])
    assert wrong == []
    assert left == []
    sent = [one.body for one in read_requests(text)[0] if one.target == ROUTE]
    at = 0
    for body in kept:  # each body that came is one that was sent, in order, and none came twice
        assert body in sent[at:]
        at = sent.index(body, at) + 1
    answered = [mark_of(body) for status, body in answers_of(heard) if status == 200]
    assert answered == [mark_of(body) for body in kept]


@pytest.mark.parametrize("case", corpus("requests"), ids=lambda case: case.name)
def test_nothing_of_a_hostile_request_reaches_an_engine(case) -> None:
    """The corpus' targets are no routes: whatever an engine gets was smuggled, but for the good one before it."""
    text = request("mark-1") + case.text.replace(b"GET /x", b"POST " + ROUTE)
    heard, kept, wrong, left = played([text])
    assert (wrong, left) == ([], [])
    assert [mark_of(body) for body in kept] == [b"mark-1"]
    assert answers_of(heard)[0][0] == 200


@pytest.mark.parametrize("case", corpus("answers"), ids=lambda case: case.name)
def test_a_hostile_answer_is_never_taken_for_the_next_one(case) -> None:
    heard, kept, wrong, left = played([request("mark-1"), b"", request("mark-2")], [case.text])
    assert (wrong, left) == ([], [])
    assert [mark_of(body) for body in kept][-1:] == [b"mark-2"]
    answers = answers_of(heard)
    assert answers, heard
    assert all(b"mark-2" not in body for _, body in answers[:1])
    if case.verdict.startswith(("kept", "broken")) and len(answers) > 1:
        assert mark_of(answers[-1][1]) == b"mark-2"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damaged_answer_reaches_another_request(data) -> None:
    text = bytearray(data.draw(st.sampled_from(corpus("answers"))).text)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 4))] = data.draw(SNIPPETS)
    heard, _, wrong, left = played([request("mark-1"), request("mark-2"), request("mark-3")], [bytes(text)])
    assert (wrong, left) == ([], [])
    try:
        answers = answers_of(heard)
    except NotStrictError:
        pytest.fail(f"what the client hears is no HTTP: {heard!r}")
    marks = [mark_of(body) for status, body in answers if status == 200 and b"mark" in body]
    assert marks == [mark for mark in (b"mark-2", b"mark-3") if mark in marks], "an answer is not its request's"


EVENTS = st.one_of(
    st.sampled_from(
        [
            b'data: {"id":"a","object":"text_completion","choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n',
            b'data: {"id":"a","choices":[{"index":0,"text":"","finish_reason":"stop"}]}\r\n\r\n',
            b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
            b'data: {"choices":[{"index":7,"text":5}]}\n\n',
            b'data: {"choices":null}\n\n',
            b'data: {"choices":[{"index":0,"text":"x","prompt_token_ids":[1,2],"token_ids":[3]}]}\n\n',
            b'data: {"choices":[{"index":0,"text":"x","token_ids":[3, -1, 99999999999999999999]}]}\n\n',
            b'data: {"choices":[{"index":0,"text":"x","token_ids":null}],"token_ids":[[[}\n\n',
            b'data: {"choices":[{"index":0,"text":"\\"token_ids\\":[5]","token_ids":{"a":1}}]}\n\n',
            b"data: [1,2]\n\n",
            b'data: {"choices":[{"index":0,"text":"\\ud800"}]}\n\n',
            b'data: {"error":{"message":"m"}}\n\n',
            b"data: [DONE]\n\n",
            b": ping\n\n",
            b"event: error\ndata: x\n\n",
            b"data: " + b"[" * 2000 + b"\n\n",
            b"\n\n",
            b"data:",
        ]
    ),
    st.binary(max_size=8),
)


class Errors(logging.Handler):
    """Counts what the front end calls an error of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@settings(max_examples=150, deadline=None)
@given(
    st.lists(EVENTS, max_size=8),
    st.lists(st.integers(1, 300), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_a_stream_of_anything_crashes_nothing_and_leaves_the_next_answer_alone(events, cuts, asks_usage, ends) -> None:
    text = b"".join(events)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = b"".join(b"%x\r\n%b\r\n" % (b - a, text[a:b]) for a, b in pairwise(places))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    answer = head + chunks + (b"0\r\n\r\n" if ends else b"")
    more = {"stream_options": {"include_usage": True}} if asks_usage else {}
    errors = Errors()
    logging.getLogger("pointsman").addHandler(errors)
    try:
        heard, _, wrong, left = played([request("mark-1", stream=True, **more), request("mark-2")], [answer])
    finally:
        logging.getLogger("pointsman").removeHandler(errors)
    assert (wrong, left, errors.said) == ([], [], [])
    first, *rest = answers_of(heard)
    assert first[0] in (200, 502)
    assert [mark_of(body) for _, body in rest] == [b"mark-2"]
