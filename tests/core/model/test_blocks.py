from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.blocks import BlockUnit, salt_seed, text_block_keys


def test_keys_are_the_documented_chain() -> None:
    keys = text_block_keys(b"abcdefghij", 4, seed=7)
    first = xxhash.xxh3_64_intdigest(b"abcd", 7)
    assert keys.keys == (first, xxhash.xxh3_64_intdigest(b"efgh", first))
    assert (keys.unit, keys.block_size, keys.length) == (BlockUnit.BYTES, 4, 10)


@given(st.binary(max_size=200), st.binary(max_size=200), st.integers(1, 40))
def test_two_texts_share_exactly_the_keys_of_their_common_full_blocks(a: bytes, b: bytes, size: int) -> None:
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    left, right = text_block_keys(a, size, 0).keys, text_block_keys(b, size, 0).keys
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    assert shared == min(common // size, len(left), len(right))


def test_another_seed_shares_nothing() -> None:
    assert not set(text_block_keys(b"x" * 64, 16, 1).keys) & set(text_block_keys(b"x" * 64, 16, 2).keys)


def test_salt_parts_are_kept_apart() -> None:
    assert salt_seed(b"ab", b"c") != salt_seed(b"a", b"bc")
    assert salt_seed(b"a", b"") != salt_seed(b"a")
    assert salt_seed(b"model", b"tenant") == salt_seed(b"model", b"tenant")


def test_a_block_has_at_least_one_byte() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        text_block_keys(b"abc", 0, 0)
