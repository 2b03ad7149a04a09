from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.body import ensure_stream_usage
from pointsman.edge.wire.json_part import part_start
from support.costs import cpu_s

NAMES = st.one_of(
    st.sampled_from(["stream_options", "include_usage", "model", "", 'a"b', "\\", "é"]), st.text(max_size=4)
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
        st.sampled_from(['"stream_options":{}', "\\", '{"', "[", "}]"]),
    ),
    lambda children: st.one_of(st.lists(children, max_size=3), st.dictionaries(NAMES, children, max_size=3)),
    max_leaves=8,
)
OPTIONS = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"include_usage": VALUES, "continuous_usage_stats": VALUES, "x": VALUES}),
)
LAYOUTS = st.sampled_from(
    [
        {},
        {"separators": (",", ":")},
        {"indent": 2},
        {"indent": "\t"},
        {"ensure_ascii": False},
        {"separators": (" ,\r\n", ": ")},
    ]
)


@st.composite
def documents(draw):
    """(text, value) of an object, in which `stream_options` is an object or null if it is there."""
    value = draw(st.dictionaries(NAMES.filter(lambda n: n != "stream_options"), VALUES, max_size=5))
    if draw(st.booleans()):
        items = list(value.items())
        items.insert(draw(st.integers(0, len(items))), ("stream_options", draw(OPTIONS)))
        value = dict(items)
    text = json.dumps(value, **draw(LAYOUTS))
    if draw(st.booleans()):
        text = " \n" + text + "\r\n"
    if draw(st.booleans()):
        text = text.replace('"stream_options":', r'"stream\u005foptions":')
    return text.encode(), value


@settings(max_examples=100, deadline=None)
@given(documents())
def test_only_include_usage_changes(document):
    text, value = document
    after = ensure_stream_usage(text)
    value["stream_options"] = {**(value.get("stream_options") or {}), "include_usage": True}
    assert json.loads(after) == value
    assert ensure_stream_usage(after) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{}", b'{"stream_options":{"include_usage":true}}'),
        (b" { } ", b' {"stream_options":{"include_usage":true} } '),
        (b'{"a":1}', b'{"stream_options":{"include_usage":true},"a":1}'),
        (b'{ "a" : 1e5 }', b'{"stream_options":{"include_usage":true}, "a" : 1e5 }'),
        (b'{"stream_options": null}', b'{"stream_options": {"include_usage":true}}'),
        (b'{"stream_options":{}}', b'{"stream_options":{"include_usage":true}}'),
        (
            b'{"stream_options":{"include_usage" : false, "continuous_usage_stats":true}, "n":12345678901234567890}',
            b'{"stream_options":{"include_usage" : true, "continuous_usage_stats":true}, "n":12345678901234567890}',
        ),
        (
            b'{"stream_options":null,"b":1,"stream_options":{"x":1}}',
            b'{"stream_options":null,"b":1,"stream_options":{"include_usage":true,"x":1}}',
        ),
        (
            b'{"m":{"stream_options":{"include_usage":false}},"t":"\\"stream_options\\":{}"}',
            b'{"stream_options":{"include_usage":true},"m":{"stream_options":{"include_usage":false}},'
            b'"t":"\\"stream_options\\":{}"}',
        ),
    ],
)
def test_exact_bytes(before, after):
    assert ensure_stream_usage(before) == after


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"stream_options"',
        b'{"stream_options":5}',
        b'{"stream_options"',
        b'{"stream_options":',
        b'{"stream_options":{"a":1}',
        b'{"stream_options":"',
        b'{"stream_options" 1}',
        b"{stream_options:1}",
        b'{"a":1 "stream_options":{}}',
        b'{"a":1,"stream_options":{},}',
        b'{"\\ud800":1,"stream_options":{}}',
    ],
)
def test_broken_bodies(body):
    with pytest.raises(ValueError, match=r"JSON|stream_options"):
        ensure_stream_usage(body)


@pytest.mark.parametrize("options", [b"null", b"7", b"[]", b'"{}"'])
@pytest.mark.parametrize("before", [b"", b'"stream_options":{"include_usage":true},'])
def test_the_last_of_two_counts(before, options):
    body = b'{%b"stream_options":%b}' % (before, options)
    if options == b"null":
        assert ensure_stream_usage(body) == b'{%b"stream_options":{"include_usage":true}}' % before
    else:
        with pytest.raises(ValueError, match="object or null"):
            ensure_stream_usage(body)


def test_members_of_the_options_are_found_by_their_place_not_by_their_bytes():
    options = b'{"x":{"include_usage":null},"include\\u005fusage":null,"y":null}'
    assert ensure_stream_usage(b'{"a":%b,"stream_options":%b,"b":%b}' % (options, options, options)) == (
        b'{"a":%b,"stream_options":%b,"b":%b}'
        % (options, options.replace(b'005fusage":null', b'005fusage":true'), options)
    )


def test_deep_nesting_is_refused():
    deep = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(ValueError, match="nested"):
        ensure_stream_usage(b'{"a":%b,"stream_options":{}}' % deep)


@pytest.mark.parametrize(
    "filling", [b'{"role":"u"},', b'"\\"",', b"[],", b'{"stream_options":{}},', b'"\\\\\\\\",'], ids=range(5)
)
def test_the_cost_grows_slowly_with_the_body(filling):
    body = b'{"stream_options":{},"messages":[' + filling * (2**20 // len(filling)) + b"0]}"
    # A search byte by byte in Python takes many times as long as this.
    assert cpu_s(lambda: ensure_stream_usage(body)) < cpu_s(lambda: json.loads(body), 1) / 2
    after = ensure_stream_usage(body)
    assert after[:52] == b'{"stream_options":{"include_usage":true},"messages":'
    assert after[52:] == body[32:]


def test_a_part_of_another_text_is_not_placed():
    part = msgspec.json.Decoder(msgspec.Raw).decode(b"[1, 2]")
    with pytest.raises(ValueError, match="no part"):
        part_start(b"[1, 2]" + b" " * 10, part)
