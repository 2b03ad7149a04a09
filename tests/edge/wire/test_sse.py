from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.sse import StreamScanner, event_data
from pointsman.edge.wire.usage import Usage, usage_of_body

USAGE_ONLY = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(value: object, end: bytes = b"\n\n") -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + end


def chunk(text: str, **more: object) -> object:
    return {"choices": [{"index": 0, "delta": {"content": text}}], **more}


def run(pieces: list[bytes], **options: object) -> tuple[bytes, StreamScanner]:
    scanner = StreamScanner(**options)  # type: ignore[arg-type]
    out = b"".join(scanner.feed(piece) for piece in pieces)
    return out + scanner.flush(), scanner


@st.composite
def streams(draw):
    """(events, which of them hold nothing but usage)."""
    end = draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    plain = st.one_of(
        st.text(max_size=20).map(lambda text: event(chunk(text), end)),
        st.sampled_from(
            [
                event(chunk('"usage":{"prompt_tokens":9}'), end),
                event(chunk("x", usage=None), end),
                event(chunk("x", usage={"prompt_tokens": 1, "completion_tokens": 2}), end),
                event({"choices": [], "prompt_filter": []}, end),
                event({"choices": [{"usage": {"a": 1}}]}, end),
                b": ping" + end,
                b"event: x\ndata: {}" + end,
                end,
                b"\n",
                b"data: not json but has " + b'"usage":{' + end,
            ]
        ),
    )
    alone = st.sampled_from(
        [
            event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}, end),
            b'data:{"usage" : {"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}, "choices": [ ] }' + end,
        ]
    )
    marked = draw(st.lists(st.one_of(plain.map(lambda e: (e, False)), alone.map(lambda e: (e, True))), max_size=8))
    tail = draw(st.sampled_from([b"", b"data: [DONE]" + end, b"data: {", b"data: {}\n"]))
    return [*marked, (tail, False)]


@settings(max_examples=100, deadline=None)
@given(streams(), st.data(), st.booleans())
def test_any_split_gives_the_same(stream, data, hide):
    whole = b"".join(text for text, _ in stream)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    out, scanner = run(pieces, hide_usage=hide)
    expected = b"".join(text for text, alone in stream if not (alone and hide))
    assert out == expected
    at_once, other = run([whole], hide_usage=hide)
    assert at_once == out
    for name in ("events", "usage", "done", "error", "overflowed"):
        assert getattr(scanner, name) == getattr(other, name), name


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=12), st.booleans())
@example([b"data: a\r\n\r", b"\ndata: b\n", b"\r\n"], True)
def test_arbitrary_bytes_pass_unchanged(pieces, hide):
    out, _ = run(pieces, hide_usage=hide)
    assert out == b"".join(pieces)


def test_without_hiding_nothing_is_held_back():
    scanner = StreamScanner()
    for piece in (b"data: {", b'"choices":[]', b"}\n", b"\nda"):
        assert scanner.feed(piece) == piece
    assert scanner.flush() == b""


def test_with_hiding_only_the_incomplete_event_is_held_back():
    scanner = StreamScanner(hide_usage=True)
    first = event(chunk("é"))
    cut = first.index("é".encode()) + 1
    assert scanner.feed(first + first[:cut]) == first
    assert scanner.feed(first[cut:] + b"data") == first
    assert scanner.flush() == b"data"


def test_counts_usage_and_end():
    _, scanner = run([event(chunk("a")), event(chunk("b")), USAGE_ONLY + DONE])
    assert scanner.events == 3
    assert scanner.usage == Usage(11, 7, None)
    assert scanner.done
    assert not scanner.error


def test_usage_only_event_is_hidden_and_still_accounted():
    out, scanner = run([event(chunk("a")), USAGE_ONLY, DONE], hide_usage=True)
    assert out == event(chunk("a")) + DONE
    assert scanner.usage == Usage(11, 7, None)


def test_usage_beside_choices_stays():
    with_choices = event(chunk("a", usage={"prompt_tokens": 1, "completion_tokens": 1}))
    out, scanner = run([with_choices, USAGE_ONLY], hide_usage=True)
    assert out == with_choices
    assert scanner.usage == Usage(11, 7, None)


@pytest.mark.parametrize(
    "text", ['"usage":{"prompt_tokens":1}', "data: [DONE]", '\n\ndata: {"error": 1}\n\n', '{"choices":[],"usage":{}}']
)
def test_lookalikes_in_the_text_are_nothing(text):
    stream = event(chunk(text))
    out, scanner = run([stream], hide_usage=True)
    assert out == stream
    assert (scanner.usage, scanner.done, scanner.error, scanner.events) == (None, False, False, 1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'data: {"error": {"message": "boom"}}\n\n', True),
        (b'data: {"id":1}\n\ndata: {"error":{"code":500}}\r\n\r\n', True),
        (b"event: error\ndata: {}\n\n", True),
        (b"event:error\r\ndata: {}\r\n\r\n", True),
        (b"data: {}\n\nevent:  error \ndata: {}\n\n", True),
        (b'data:{"error":"x"}\n\n', True),
        (b'data:   { \t"error" : {"message": "boom"} }\n\n', True),
        (b'data: {\ndata: "error":\ndata: {}}\n\n', True),
        (b'data: {"id": "x", "choices": [], "error": {"code": 500}}\n\n', True),
        (b'data: {"object": "error", "message": "boom", "code": 400}\n\n', True),
        (b"event: errors\ndata: {}\n\n", False),
        (b"data: event: error\n\n", False),
        (b'data: {"error": \n\n', False),
        (b'data: {"id":1, "error" : null}\n\n', False),
        (b'data: {"choices":[{"logprobs":{"token":"error"}}]}\n\n', False),
        (b'data: {"error": null, "choices": []}\n\n', False),
        (b'data: {"choices":[{"error":{}}]}\n\n', False),
    ],
)
def test_error_events(text, error):
    assert run([text])[1].error is error


@pytest.mark.parametrize("hide", [False, True])
def test_event_beyond_the_bound_passes_unread(hide):
    huge = event(chunk("x" * 500, usage={"prompt_tokens": 99, "completion_tokens": 1}))
    stream = event(chunk("a")) + huge + event(chunk("b")) + USAGE_ONLY + DONE
    pieces = [stream[i : i + 50] for i in range(0, len(stream), 50)]
    out, scanner = run(pieces, hide_usage=hide, max_held_bytes=200)
    assert out == (stream.replace(USAGE_ONLY, b"") if hide else stream)
    assert scanner.overflowed
    assert scanner.usage == Usage(11, 7, None)
    assert scanner.events == 4


def test_held_bytes_are_bounded():
    scanner = StreamScanner(hide_usage=True)
    passed = sum(len(scanner.feed(b"x" * 10_000)) for _ in range(1000))
    assert passed >= 10_000_000 - 1024 * 1024
    assert len(scanner.flush()) + passed == 10_000_000


def test_unreadable_usage_is_logged_and_passed(caplog):
    broken = b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n'
    out, scanner = run([broken], hide_usage=True)
    assert out == broken
    assert scanner.usage is None
    assert [record.name for record in caplog.records].count("pointsman.wire") == 1


def test_event_data_joins_lines():
    assert event_data(b"event: x\r\ndata: a\r\n: c\r\ndata:b\r\n\r\n") == b"a\nb"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2}}, Usage(1, 2, None)),
        (
            {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}},
            Usage(1, 2, 1),
        ),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": None}}, Usage(1, 2, None)),
        ({"data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 8, "total_tokens": 8}}, Usage(8, 0, None)),
        (
            {"usage": {"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 4}}},
            Usage(5, 6, 4),
        ),
        (
            {"type": "response.completed", "response": {"usage": {"input_tokens": 5, "output_tokens": 6}}},
            Usage(5, 6, None),
        ),
        ({"usage": None}, None),
        ({"usage": {}}, None),
        ({"error": {"message": "x"}}, None),
        ({"metadata": {"usage": {"prompt_tokens": 1}}}, None),
    ],
)
def test_usage_of_body(body, expected):
    assert usage_of_body(json.dumps(body).encode()) == expected


def test_usage_of_a_body_that_is_no_json():
    assert usage_of_body(b"<html>") is None
    assert usage_of_body(b'{"usage": {') is None
