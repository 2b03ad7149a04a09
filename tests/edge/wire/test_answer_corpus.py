"""Hostile answers: each has its verdict, and no byte of one is ever taken for a part of the next."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.http1_client import Origin
from pointsman.edge.wire.http1_upstream import UpstreamProtocol
from support.http_corpus import corpus
from support.strict_http import NotStrictError, read_answer

CASES = corpus("answers")
HEAD = b"POST / HTTP/1.1\r\nhost: h\r\n\r\n"


class Pool:
    free = 0

    def released(self, connection) -> None:
        self.free += 1

    def lost(self, connection) -> None:
        pass


class Sink:
    def __init__(self) -> None:
        self.status, self.body, self.endings = 0, b"", []
        self.disorder: list[str] = []
        """Kept, not raised: the connection takes exceptions of its sinks as its own."""

    def on_head(self, status, headers) -> None:
        if self.status or self.endings or not 200 <= status <= 999:
            self.disorder.append(f"head {status}")
        self.status = status

    def on_data(self, data) -> None:
        if not self.status or self.endings or not data:
            self.disorder.append("data")
        self.body += data

    def on_end(self) -> None:
        self.endings.append("end")

    def on_error(self, error) -> None:
        self.endings.append("error")


class Read:
    """What a connection made of an answer."""

    def __init__(self, transport_type: type, pieces: list[bytes]) -> None:
        transport, pool, self.sink = transport_type(), Pool(), Sink()
        connection = UpstreamProtocol(pool, Origin("http", "up", 80), None)  # type: ignore[arg-type]
        connection.connection_made(transport)
        connection.send(HEAD, b"", self.sink)
        self.ended_at: int | None = None
        fed = 0
        for piece in pieces:
            if transport.closed:
                break
            connection.data_received(piece)
            fed += len(piece)
            if self.sink.endings and self.ended_at is None:
                self.ended_at = fed
        self.broken = self.sink.endings == ["error"]
        self.kept = pool.free == 1 and connection.usable
        connection.eof_received()
        connection.connection_lost(None)
        assert len(self.sink.endings) == 1
        assert self.sink.disorder == []
        self.ending = self.sink.endings[0]

    @property
    def verdict(self) -> str:
        if self.ending == "error":
            return "broken" if self.broken else "cut"
        return f"{'kept' if self.kept else 'closed'} {self.sink.status} {self.sink.body.decode()}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [1, 2, 1_000_000])
def test_every_case_has_its_verdict_in_any_pieces(fake_transport_type, case, size) -> None:
    pieces = [case.text[at : at + size] for at in range(0, len(case.text), size)]
    assert Read(fake_transport_type, pieces).verdict.strip() == case.verdict.strip()


SNIPPETS = st.one_of(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"f", b"-", b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n"]),
    st.binary(min_size=1, max_size=3),
)
LINES = st.sampled_from(
    [
        b"Content-Length: 3",
        b"Content-Length: 0",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: x",
        b"Connection: close",
        b"Upgrade: h2c",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 204 No Content",
        b"",
        b"0",
        b"3",
        b"abc",
    ]
)


@st.composite
def answers(draw) -> bytes:
    text = draw(st.sampled_from(CASES)).text + draw(st.sampled_from([b"", draw(st.sampled_from(CASES)).text]))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(text)))
        end = min(len(text), at + draw(st.integers(0, 10)))
        how = draw(st.sampled_from(["replace", "double", "line"]))
        if how == "replace":
            text = text[:at] + draw(SNIPPETS) + text[end:]
        elif how == "double":
            text = text[:end] + text[at:]
        else:
            lines = text.split(b"\r\n")
            lines.insert(draw(st.integers(0, len(lines))), draw(LINES))
            text = b"\r\n".join(lines)
    return text


@settings(max_examples=400, deadline=None)
@given(answers(), st.lists(st.integers(1, 200), max_size=5))
def test_no_answer_poisons_the_next(fake_transport_type, text, cuts) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    read = Read(fake_transport_type, [text[a:b] for a, b in pairwise(places)])
    if not read.kept:
        return
    # A connection that is used again must have ended its answer where everybody sees its end, at the end of a read.
    strict = read_answer(text)
    assert strict is not None
    assert not strict.by_close
    assert (strict.status, strict.body) == (read.sink.status, read.sink.body)
    assert not text[strict.end : read.ended_at].strip(b"\r\n"), "only empty lines may come behind it"


@settings(max_examples=400, deadline=None)
@given(answers(), st.lists(st.integers(1, 200), max_size=5))
def test_any_split_of_a_broken_answer_tells_the_same(fake_transport_type, text, cuts) -> None:
    whole = Read(fake_transport_type, [text] if text else [])
    bytewise = Read(fake_transport_type, [text[at : at + 1] for at in range(len(text))])
    assert (whole.ending, whole.sink.status) == (bytewise.ending, bytewise.sink.status)
    if whole.ending == "end":
        assert whole.sink.body == bytewise.sink.body
        try:
            strict = read_answer(text)
        except NotStrictError:
            strict = None
        if strict is not None and not strict.by_close:
            assert (strict.status, strict.body) == (whole.sink.status, whole.sink.body)
