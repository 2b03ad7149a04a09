from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.token_keys import (
    KEY_MASK,
    KeySpec,
    chain,
    pack_tokens,
    salt_extra,
    token_block_keys,
    token_seed,
)

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)
SPEC = KeySpec(4)


def test_keys_are_the_documented_chain() -> None:
    seed = token_seed(SPEC)
    first = xxhash.xxh3_64_intdigest(pack_tokens([1, 2, 3, 4]), seed) & KEY_MASK
    second = xxhash.xxh3_64_intdigest(pack_tokens([5, 6, 7, 8]), first) & KEY_MASK
    blocks = token_block_keys(pack_tokens(range(1, 11)), SPEC)
    assert blocks.keys == (first, second)
    assert (blocks.block_size, blocks.unit, blocks.length) == (4, "tokens", 10)


@given(TOKENS, st.integers(0, 17), st.integers(1, 9), st.booleans())
def test_a_chain_in_two_parts_is_the_chain_in_one(tokens: list[int], cut: int, size: int, bigram: bool) -> None:
    """What events announce block by block equals what a prompt gives at once."""
    spec = KeySpec(size, bigram)
    whole = chain(pack_tokens(tokens), spec, token_seed(spec))
    cut = min(cut, len(whole))
    head = chain(pack_tokens(tokens[: cut * size + bigram]), spec, token_seed(spec)) if cut else []
    parent = head[-1] if head else token_seed(spec)
    assert head + chain(pack_tokens(tokens[cut * size :]), spec, parent) == whole
    assert len(whole) == spec.full_blocks(len(tokens))


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_two_prompts_share_exactly_their_common_full_blocks(a: list[int], b: list[int], size: int) -> None:
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    spec = KeySpec(size)
    left, right = token_block_keys(pack_tokens(a), spec).keys, token_block_keys(pack_tokens(b), spec).keys
    shared = sum(x == y for x, y in zip(left, right, strict=False))
    assert shared == min(common // size, len(left), len(right))


@pytest.mark.parametrize(
    "other",
    [
        {"spec": KeySpec(4, bigram=True)},
        {"lora_name": "adapter"},
        {"extras": {0: salt_extra("tenant")}},
        {"extras": {1: b"image"}},
    ],
)
def test_what_else_keys_a_block_changes_it_and_all_that_follow(other: dict[str, object]) -> None:
    packed = pack_tokens(range(40))
    plain = token_block_keys(packed, SPEC).keys
    keyed = token_block_keys(packed, **({"spec": SPEC} | other)).keys  # type: ignore[arg-type]
    first = 1 if other.get("extras") == {1: b"image"} else 0
    assert plain[:first] == keyed[:first]
    assert not set(plain[first:]) & set(keyed[first:])


def test_salts_are_kept_apart_and_equal_ones_meet() -> None:
    packed = pack_tokens(range(8))
    one, two, again = (token_block_keys(packed, SPEC, extras={0: salt_extra(s)}).keys for s in ("a", "ab", "a"))
    assert not set(one) & set(two)
    assert one == again


def test_keys_fit_sixty_bits_and_tokens_thirty_two() -> None:
    assert all(0 <= key < 2**60 for key in token_block_keys(pack_tokens(range(400)), SPEC).keys)
    with pytest.raises(OverflowError):
        pack_tokens([2**32])
    with pytest.raises(OverflowError):
        pack_tokens([-1])
