from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.engines.sim.tokenizer import VOCABULARY_SIZE, SimTokenizer, token_bytes

tokenizer = SimTokenizer()


@given(st.text() | st.text(alphabet="abz \n"))
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(16 <= token < VOCABULARY_SIZE for token in tokens)
    assert SimTokenizer().encode(text) == tokens


@given(st.integers(272, VOCABULARY_SIZE - 1))
def test_each_letter_group_is_one_token(token: int) -> None:
    assert tokenizer.encode(token_bytes(token).decode()) == [token]


def test_words_are_cut_into_groups_of_four_letters() -> None:
    pieces = [tokenizer.text_of(token) for token in tokenizer.encode("hello world, Ab\n")]
    assert pieces == ["hell", "o", " worl", "d", ",", " ", "A", "b", "\n"]


def test_answers_are_made_of_words_that_encode_to_themselves() -> None:
    assert len(set(tokenizer.output_ids)) == len(tokenizer.output_ids) > 200
    answer = list(tokenizer.output_ids)
    assert tokenizer.encode(tokenizer.decode(answer)) == answer


def test_special_tokens_are_never_made_from_text() -> None:
    assert min(tokenizer.encode("<|im_start|>")) >= 16
    assert tokenizer.decode([1, 15]) == "<|im_start|><|reserved_15|>"


@pytest.mark.parametrize("token", [-1, VOCABULARY_SIZE])
def test_ids_out_of_range_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token} is out of range"):
        tokenizer.decode([token])


def test_lone_bytes_decode_to_the_replacement_character() -> None:
    first, *_ = tokenizer.encode("é")
    assert tokenizer.text_of(first) == "�"
