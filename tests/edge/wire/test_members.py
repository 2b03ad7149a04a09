"""Members of an object change as bytes; what is not named stays as it was written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.wire.members import edited, joined, members

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


@given(st.dictionaries(NAMES, JSON, max_size=5), st.dictionaries(NAMES, JSON, max_size=3), st.sets(NAMES, max_size=3))
def test_an_edit_is_what_the_same_edit_of_the_read_object_is(
    body: dict[str, object], put: dict[str, object], drop: set[str]
) -> None:
    text = json.dumps(body).encode()
    told = edited(text, {name: json.dumps(value).encode() for name, value in put.items()}, drop)
    assert json.loads(told) == {name: value for name, value in body.items() if name not in drop} | put


def test_values_keep_every_byte() -> None:
    text = b'{ "seed" : 18446744073709551617 , "temperature":1.0e-00, "x":{"a" : [1,  2.50]}, "drop":1 }'
    assert edited(text, {"put": b"[ 1 ]"}, ("drop",)) == (
        b'{"seed":18446744073709551617,"temperature":1.0e-00,"x":{"a" : [1,  2.50]},"put":[ 1 ]}'
    )


def test_of_a_member_that_comes_twice_the_last_counts_and_none_is_left_when_it_goes() -> None:
    text = b'{"a":1,"min_tokens":2,"m\\u0069n_tokens":3,"a":4}'
    assert edited(text) == b'{"a":4,"min_tokens":3}'
    assert edited(text, drop=("min_tokens",)) == b'{"a":4}'
    assert edited(text, {"min_tokens": b"7"}) == b'{"a":4,"min_tokens":7}'


def test_names_that_need_escapes_come_back_as_they_were() -> None:
    text = b'{"\\"\\n\\u00e9":1}'
    assert json.loads(joined(members(text))) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not valid JSON"),
        (b'{"a":}', "not valid JSON"),
        (b"[1]", "must start with '{'"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_what_is_no_object_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        edited(text)
