"""The upstream connection without a socket: any split of an answer's bytes tells its sink the same."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.http1_client import Origin, UpstreamClosed, UpstreamProtocolError
from pointsman.edge.wire.http1_upstream import UpstreamProtocol

HEAD = b"POST / HTTP/1.1\r\nhost: h\r\n\r\n"


class Pool:
    def __init__(self):
        self.free = 0

    def released(self, connection):
        self.free += 1

    def lost(self, connection):
        pass


class Calls:
    def __init__(self):
        self.calls = []

    def on_head(self, status, headers):
        self.calls.append(("head", status, headers))

    def on_data(self, data):
        self.calls.append(("data", data))

    def on_end(self):
        self.calls.append(("end",))

    def on_error(self, error):
        self.calls.append(("error", type(error)))

    @property
    def summary(self):
        body = b"".join(call[1] for call in self.calls if call[0] == "data")
        return [call for call in self.calls if call[0] != "data"], body


@pytest.fixture
def exchange(fake_transport_type):
    def make(head=HEAD, sink=None):
        loop = asyncio.new_event_loop()
        loop.close()
        pool = Pool()
        connection = UpstreamProtocol(pool, Origin("http", "up", 80), loop)
        transport = fake_transport_type()
        connection.connection_made(transport)
        sink = sink or Calls()
        sink.hold = connection.hold()
        sink.hold.send(head, b"", sink)
        return connection, transport, sink, pool

    return make


@st.composite
def answers(draw):
    """(bytes, status, headers, body) of an answer that leaves the connection usable."""
    status = draw(st.sampled_from([200, 404, 500]))
    pieces = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"]))
    body = b"".join(pieces)
    if draw(st.booleans()):
        framing = (b"transfer-encoding", b"chunked")
        trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
        wire = b"".join(b"%X\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailer + b"\r\n"
    else:
        framing = (b"content-length", b"%d" % len(body))
        wire = body
    head = b"HTTP/1.1 %d Reason\r\nX-A: 1\r\n%b: %b\r\n\r\n" % (status, framing[0], framing[1])
    return interim + head + wire, status, ((b"x-a", b"1"), framing), body


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_split_gives_the_same_calls(fake_transport_type, data):
    transport, pool = fake_transport_type(), Pool()
    connection = UpstreamProtocol(pool, Origin("http", "up", 80), None)
    connection.connection_made(transport)
    for turn in range(2):  # the second one on the kept connection
        text, status, headers, body = data.draw(answers())
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
        sink = Calls()
        assert connection.reused == (turn == 1)
        connection.send(HEAD, b"", sink)
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            if start < end:
                before = len([c for c in sink.calls if c[0] == "data"])
                connection.data_received(text[start:end])
                assert len([c for c in sink.calls if c[0] == "data"]) <= before + 1
        assert sink.summary == ([("head", status, headers), ("end",)], body)
        assert pool.free == turn + 1


class ParserOnly(UpstreamProtocol):
    """Never leaves the parser out."""

    __slots__ = ()

    def _ends_between_chunks(self, data):
        return False


class ChunkCalls(Calls):
    """A sink that takes framed chunks, and checks the framing."""

    def on_chunk(self, data, framed):
        assert framed == b"%x\r\n%b\r\n" % (len(data), data)
        self.framed = getattr(self, "framed", 0) + 1
        self.on_data(data)


LOOKALIKES = st.tuples(
    st.sampled_from([b"\n\r\n", b"\r\n\r\n", b"1\r\n", b"3\r\nabc\r\n", b"data: x\n\r\n"]),
    st.sampled_from([b"1\r\n1\r\n", b"3\r\nabc\r\n", b"5\r\n5\r\n", b"0\r\n\r\n", b"1\r\n\n\r\n", b""]),
)
"""Two parts of a chunk's data that read as framing."""
PIECES = st.one_of(
    LOOKALIKES,
    LOOKALIKES,
    st.tuples(st.binary(min_size=1, max_size=20), st.just(b"")),
    st.tuples(st.integers(1, 300).map(lambda n: b"x" * n), st.just(b"\n")),
)
SIZE_LINES = st.sampled_from(
    [b"%x\r\n"] * 6 + [b"%X\r\n", b"0%x\r\n", b"%x;a=1\r\n", b"%x \r\n", b"+%x\r\n", b"0x%x\r\n"]
)


@st.composite
def chunked_streams(draw):
    """(bytes of a chunked answer, places to cut it): whole and broken ones, cut mostly between chunks."""
    text = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    cuts = {len(text)}
    for first, second in draw(st.lists(PIECES, max_size=8)):
        text += draw(SIZE_LINES) % len(first + second)
        for piece in (b"", first, second):
            text += piece
            if draw(st.booleans()):
                cuts.add(len(text))
        text += b"\r\n" if draw(st.integers(0, 19)) else draw(st.sampled_from([b"", b"\n", b"\r\n\r\n"]))
        if draw(st.integers(0, 3)):
            cuts.add(len(text))
    text += draw(
        st.sampled_from([b"0\r\n\r\n", b"0\r\nx-sum: 1\r\n\r\n", b"", b"0\r\n\r\nHTTP/1.1 200 OK\r\n", b"zz\r\n"])
    )
    cuts |= set(draw(st.lists(st.integers(1, len(text)), max_size=3)))
    return text, sorted({0, len(text)} | cuts)


def told(protocol_type, fake_transport_type, sink, text, cuts):
    """What a sink and the pool hear of an answer."""
    pool, transport = Pool(), fake_transport_type()
    connection = protocol_type(pool, Origin("http", "up", 80), None)
    connection.connection_made(transport)
    connection.send(HEAD, b"", sink)
    progress = []
    for start, end in pairwise(cuts):
        connection.data_received(text[start:end])
        progress.append(sink.summary)
    connection.eof_received()
    connection.connection_lost(None)
    return progress, sink.summary, pool.free, transport.closed


@settings(max_examples=300, deadline=None)
@given(chunked_streams())
def test_chunks_beside_the_parser_are_told_as_by_the_parser(fake_transport_type, stream):
    text, cuts = stream
    expected = told(ParserOnly, fake_transport_type, Calls(), text, cuts)
    assert told(UpstreamProtocol, fake_transport_type, Calls(), text, cuts) == expected
    assert told(UpstreamProtocol, fake_transport_type, ChunkCalls(), text, cuts) == expected


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "reads",
    [
        (CHUNKED + b"8\r\n", b"3\r\nabc\r\n", b"\r\n0\r\n\r\n"),
        (CHUNKED, b"1\r\na\r\n8\r\n", b"3\r\nabc\r\n", b"\r\n0\r\n\r\n"),
        (CHUNKED, b"b\r\n\n\r\n", b"3\r\nabc\r\n", b"\r\n0\r\n\r\n"),
        (CHUNKED, b"c\r\nx\n\r\n", b"3\r\nabc\r\n", b"\r\n0\r\n\r\n"),
        (CHUNKED, b"e\r\n", b"abc\n\r\n", b"3\r\nabc\r\n", b"\r\n0\r\n\r\n"),
    ],
)
def test_data_that_reads_as_a_chunk_is_data(exchange, reads):
    connection, _, sink, pool = exchange()
    for read in reads:
        connection.data_received(read)
    assert sink.summary[1].endswith(b"3\r\nabc\r\n")
    assert sink.calls[-1] == ("end",)
    assert pool.free == 1


@pytest.mark.parametrize("size", [1, 9, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 70_000])
def test_single_chunks_are_handed_over_with_their_framing(exchange, size):
    framed = ChunkCalls()
    connection, _, _, pool = exchange(sink=framed)
    body = b"x" * (size - 1) + b"\n"
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(3):
        connection.data_received(b"%x\r\n%b\r\n" % (size, body))
    connection.data_received(b"0\r\n\r\n")
    assert framed.summary[1] == body * 3
    assert getattr(framed, "framed", 0) == (3 if size < 4096 else 0)
    assert pool.free == 1


BAD_ANSWERS = [
    b"SSH-2.0-OpenSSH\r\n",
    b"HTTP/1.1 abc\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    b"HTTP/1.1 200 OK\r\nx: " + b"y" * 400_000,
]


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=range(len(BAD_ANSWERS)))
def test_malformed_answers(exchange, answer):
    connection, transport, sink, pool = exchange()
    connection.data_received(answer)
    assert sink.calls[-1] == ("error", UpstreamProtocolError)
    assert [call[0] for call in sink.calls].count("error") == 1
    assert transport.closed
    assert pool.free == 0
    connection.connection_lost(None)
    assert [call[0] for call in sink.calls].count("error") == 1


def test_body_before_the_fault_is_handed_over(exchange):
    connection, _, sink, _ = exchange()
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n")
    assert [call[0] for call in sink.calls] == ["head", "data", "error"]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", True),
        (b"HTTP/1.1 204 No\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\na", False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na", False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\na", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\n", False),
    ],
)
def test_what_is_kept_for_the_next_request(exchange, answer, kept):
    connection, transport, sink, pool = exchange()
    connection.data_received(answer)
    assert sink.calls[-1] == ("end",)
    assert (pool.free, transport.closed) == (int(kept), not kept)


def test_head_answer_has_no_body(exchange):
    connection, transport, sink, _pool = exchange(b"HEAD / HTTP/1.1\r\nhost: h\r\n\r\n")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
    assert [call[0] for call in sink.calls] == ["head", "end"]
    assert transport.closed


def test_body_until_the_end_of_the_connection(exchange):
    connection, _, sink, pool = exchange()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    connection.data_received(b"def")
    connection.eof_received()
    connection.connection_lost(None)
    assert sink.summary == ([("head", 200, ()), ("end",)], b"abcdef")
    assert pool.free == 0


def test_reset_is_no_end_of_such_a_body(exchange):
    connection, _, sink, _ = exchange()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    connection.connection_lost(ConnectionResetError())
    assert sink.calls[-1] == ("error", UpstreamClosed)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabc"])
def test_end_before_the_answer_is_complete(exchange, answer):
    connection, _, sink, _ = exchange()
    errors = []
    sink.on_error = errors.append
    if answer:
        connection.data_received(answer)
    connection.eof_received()
    connection.connection_lost(None)
    (error,) = errors
    assert isinstance(error, UpstreamClosed)
    assert error.received == bool(answer)
    assert not error.reused


@pytest.mark.parametrize("where", ["on_head", "on_data"])
def test_nothing_is_called_after_abort(exchange, where):
    connection, transport, sink, _ = exchange()
    after = []

    def abort(*_):
        connection.abort()
        for name in ("on_head", "on_data", "on_end", "on_error"):
            setattr(sink, name, lambda *a: after.append(a))

    setattr(sink, where, abort)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")
    connection.connection_lost(None)
    assert after == []
    assert transport.closed


@pytest.mark.parametrize("where", ["on_head", "on_data", "on_end"])
def test_failing_sink_ends_its_own_exchange_only(exchange, caplog, where):
    connection, _transport, sink, _ = exchange()
    errors = []
    sink.on_error = errors.append

    def fail(*_):
        raise KeyError("sink")

    setattr(sink, where, fail)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")
    assert [record.name for record in caplog.records].count("pointsman.wire") == 1
    assert len(errors) == (where != "on_end")


@pytest.mark.parametrize("sink_type", [Calls, ChunkCalls])
@pytest.mark.parametrize("how", ["fail", "abort"])
def test_sink_that_ends_its_exchange_at_a_single_chunk(exchange, caplog, sink_type, how):
    connection, transport, sink, pool = exchange(sink=sink_type())
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")

    def end(data):
        if how == "fail":
            raise KeyError("sink")
        connection.abort()

    sink.on_data = end
    connection.data_received(b"3\r\nabc\r\n")
    connection.data_received(b"3\r\nabc\r\n")
    assert [call[0] for call in sink.calls] == (["head", "error"] if how == "fail" else ["head"])
    assert [record.name for record in caplog.records].count("pointsman.wire") == (how == "fail")
    assert transport.closed
    assert pool.free == 0


def test_bytes_that_nobody_asked_for_close_an_idle_connection(exchange):
    connection, _transport, sink, _pool = exchange()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert connection.usable
    connection.data_received(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert not connection.usable
    assert sink.calls[-1] == ("end",)


def test_busy_connection_refuses_a_second_exchange(exchange):
    connection, _, _, _ = exchange()
    with pytest.raises(RuntimeError, match="busy"):
        connection.send(HEAD, b"", Calls())


def test_paused_connection_reads_again_before_it_is_kept(exchange):
    connection, transport, _sink, _ = exchange()
    connection.pause_reading()
    assert not transport.reading
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert transport.reading
    connection.pause_reading()
    assert transport.reading


def test_late_abort_or_pause_does_not_touch_the_next_request(exchange):
    connection, transport, first, _ = exchange()
    late = first.hold
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert first.calls[-1] == ("end",)
    second = Calls()
    current = connection.hold()
    current.send(HEAD, b"", second)
    assert current.reused
    assert not late.reused
    late.pause_reading()
    late.abort()
    assert transport.reading
    assert not transport.closed
    with pytest.raises(RuntimeError, match="pool"):
        late.send(HEAD, b"", Calls())
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert second.calls[-1] == ("end",)
