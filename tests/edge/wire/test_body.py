from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.edge.wire.body import (
    client_wants_usage,
    ensure_stream_usage,
    set_member,
    top_level_spans,
    top_level_value,
)

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
    assert client_wants_usage(after)
    assert ensure_stream_usage(after) == after


@settings(max_examples=60, deadline=None)
@given(documents())
def test_spans_are_the_members(document):
    text, value = document
    spans = top_level_spans(text)
    assert {name: json.loads(text[start:end]) for name, (start, end) in spans.items()} == value


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


def test_known_absence_saves_the_search():
    assert ensure_stream_usage(b'{"a":"stream_options"}', absent=True) == ensure_stream_usage(b'{"a":"stream_options"}')


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
        b'{"\xff":1,"stream_options":{}}',
    ],
)
def test_broken_bodies(body):
    with pytest.raises(ValueError, match=r"JSON|stream_options"):
        ensure_stream_usage(body)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (b'{"include_usage":true}', True),
        (b'{"include_usage":false}', False),
        (b'{"include_usage":null}', False),
        (b'{"include_usage":1}', True),
        (b'{"include_usage":"true"}', True),
        (b'{"include_usage":[]}', False),
        (b"null", False),
        (b"{}", False),
        (b"7", False),
    ],
)
def test_client_wants_usage(options, wanted):
    assert client_wants_usage(b'{"a":1,"stream_options":%b}' % options) is wanted
    assert not client_wants_usage(b'{"a":{"stream_options":%b}}' % options)
    assert not client_wants_usage(b"{broken stream_options")


def test_top_level_value_and_set_member():
    body = b'{"a": {"b": 1}, "b": [2 ], "a": "x\\"y"}'
    assert top_level_value(body, "a") == b'"x\\"y"'
    assert top_level_value(body, "b") == b"[2 ]"
    assert top_level_value(body, "c") is None
    assert set_member(body, "b", b"3") == b'{"a": {"b": 1}, "b": 3, "a": "x\\"y"}'
    assert set_member(body, "c", b"3") == b'{"c":3,"a": {"b": 1}, "b": [2 ], "a": "x\\"y"}'


def test_deep_nesting_is_scanned_without_recursion():
    deep = b"[" * 200_000 + b"]" * 200_000
    assert ensure_stream_usage(b'{"a":%b,"stream_options":{}}' % deep).endswith(
        b'"stream_options":{"include_usage":true}}'
    )
