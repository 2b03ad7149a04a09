"""Streams damaged anywhere: their bytes pass, and what is seen in them does not depend on how they were cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.sse import StreamScanner

PARTS = st.one_of(
    st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"event: error\n",
            b": comment\n",
            b"id: 1\r\n",
            b"retry: 1\n",
            b"\n",
            b"\n\n",
            b"\r\n",
            b"\r\n\r\n",
            b"\r",
            b"[DONE]",
            b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}',
            b'{"choices":[{"delta":{"content":"a"}}]}',
            b'{"error":{"message":"x"}}',
            b'{"object":"error"}',
            b'"usage":{',
            b'"usage": {"prompt_tokens": 99999999999999999999999}',
            b'{"usage":{"prompt_tokens":-1}}',
            b'{"usage":{"completion_tokens":1e999}}',
            b'{"error":' + b"[" * 3000,
            b'{"choices":[],"usage":' + b"{" * 3000,
            b"\xef\xbb\xbf",
            b"\xff\xfe",
            b"\0",
        ]
    ),
    st.binary(max_size=6),
)
STREAMS = st.lists(PARTS, max_size=14).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=8)


def scanned(text: bytes, cuts: list[int], *, hide: bool, most: int = 1024) -> tuple[bytes, StreamScanner]:
    scanner = StreamScanner(hide_usage=hide, max_held_bytes=most)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    out = b"".join(scanner.feed(text[a:b]) for a, b in pairwise(places))
    return out + scanner.flush(), scanner


@settings(max_examples=500, deadline=None)
@given(STREAMS, CUTS)
def test_bytes_pass_unchanged_and_splits_do_not_matter(text, cuts) -> None:
    whole, first = scanned(text, [], hide=False, most=10**6)
    pieces, second = scanned(text, cuts, hide=False, most=10**6)
    assert whole == pieces == text
    for seen in ("events", "usage", "done", "error", "overflowed"):
        assert getattr(first, seen) == getattr(second, seen), seen


@settings(max_examples=500, deadline=None)
@given(STREAMS, CUTS)
def test_hiding_takes_whole_events_only_and_the_same_ones_for_any_split(text, cuts) -> None:
    whole, _ = scanned(text, [], hide=True, most=10**6)
    pieces, _ = scanned(text, cuts, hide=True, most=10**6)
    assert whole == pieces
    hidden = len(text) - len(whole)
    assert hidden == 0 or b'"usage"' in text
    if b'"usage"' not in text:
        assert whole == text


@settings(max_examples=200, deadline=None)
@given(STREAMS, CUTS, st.booleans())
def test_what_is_held_stays_bounded(text, cuts, hide) -> None:
    most = 64
    scanner = StreamScanner(hide_usage=hide, max_held_bytes=most)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for a, b in pairwise(places):
        scanner.feed(text[a:b])
        assert len(scanner._tail) <= most
