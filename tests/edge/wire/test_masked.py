"""A secret never goes on, however an answer is cut into pieces; everything else does, unchanged and at once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.wire.errors import UpstreamError
from pointsman.edge.wire.masked import MaskedSink, forms_of

SECRET = b"sk-key-s"


class Taken:
    def __init__(self) -> None:
        self.head: tuple = ()
        self.pieces: list[bytes] = []
        self.chunks: list[tuple[bytes, bytes]] = []
        self.ended = False
        self.error: UpstreamError | None = None

    def on_head(self, status, headers) -> None:
        self.head = (status, headers)

    def on_data(self, data: bytes) -> None:
        assert data
        self.pieces.append(data)

    def on_end(self) -> None:
        self.ended = True

    def on_error(self, error) -> None:
        self.error = error


class TakenChunks(Taken):
    def on_chunk(self, data: bytes, framed: bytes) -> None:
        self.chunks.append((data, framed))
        self.pieces.append(data)


def masked(text: bytes) -> bytes:
    return text.replace(SECRET, b"*" * len(SECRET))


@given(
    st.lists(
        st.one_of(st.just(SECRET), st.just(SECRET[:5]), st.text("sk-ey\nx", max_size=8).map(str.encode)), max_size=12
    ),
    st.lists(st.integers(0, 80), max_size=10),
)
def test_any_cut(parts: list[bytes], cuts: list[int]) -> None:
    text = b"".join(parts)
    taken = Taken()
    sink = MaskedSink(taken, forms_of(SECRET))
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for start, end in pairwise(places):
        sink.on_data(text[start:end])
    sink.on_end()
    assert b"".join(taken.pieces) == masked(text)
    assert taken.ended


def test_what_ends_an_event_is_never_held_up() -> None:
    taken = TakenChunks()
    sink = MaskedSink(taken, forms_of(SECRET))
    sink.on_chunk(b"data: s\n\n", b"9\r\ndata: s\n\n\r\n")
    assert taken.chunks == [(b"data: s\n\n", b"9\r\ndata: s\n\n\r\n")]
    sink.on_chunk(b"data: sk-key-s\n\n", b"framed")
    assert taken.pieces[1:] == [b"data: ********\n\n"]


def test_as_json_writes_it() -> None:
    taken = Taken()
    sink = MaskedSink(taken, forms_of(b'se"cre\\t'))
    sink.on_data(b'{"error": "bad key se\\"cre\\\\t or se"cre\\t"}')
    sink.on_end()
    assert b"cre" not in b"".join(taken.pieces)


def test_fields_that_hold_it_are_dropped() -> None:
    taken = Taken()
    sink = MaskedSink(taken, forms_of(SECRET))
    sink.on_head(401, ((b"a", b"b"), (b"x-echo", b"Bearer " + SECRET)))
    assert taken.head == (401, ((b"a", b"b"),))
    error = UpstreamError("gone")
    sink.on_error(error)
    assert taken.error is error


@pytest.mark.parametrize("secret", [b"", b"x", b"1234567"])
def test_short_secrets_are_not_looked_for(secret: bytes) -> None:
    assert forms_of(secret) == ()
