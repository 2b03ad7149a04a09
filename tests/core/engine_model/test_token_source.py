from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.engine_model.token_source import choose, context_digest, extend_digest

token_lists = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=60)


@given(token_lists, st.integers(0, 3))
def test_a_digest_extended_token_by_token_equals_that_of_the_whole(tokens: list[int], salt: int) -> None:
    digest = context_digest(array("I", tokens[:1]), salt)
    for position, token in enumerate(tokens[1:], start=1):
        digest = extend_digest(digest, token, position)
    assert digest == context_digest(array("I", tokens), salt)


@given(token_lists, st.integers(1, 5000))
def test_a_choice_is_in_range_and_always_the_same(tokens: list[int], count: int) -> None:
    digest = context_digest(array("I", tokens))
    choice = choose(digest, len(tokens), count)
    assert 0 <= choice < count
    assert choice == choose(digest, len(tokens), count)


def test_order_salt_and_content_all_matter() -> None:
    digests = {
        context_digest(array("I", tokens), salt)
        for tokens, salt in (([1, 2, 3], 0), ([3, 2, 1], 0), ([1, 2, 3], 1), ([1, 2], 0), ([1, 2, 4], 0))
    }
    assert len(digests) == 5


def test_choices_spread_over_all_tokens() -> None:
    digest = context_digest(array("I", [5]))
    counts = [0] * 16
    for position in range(1, 1601):
        choice = choose(digest, position, 16)
        counts[choice] += 1
        digest = extend_digest(digest, choice, position)
    assert min(counts) > 60
