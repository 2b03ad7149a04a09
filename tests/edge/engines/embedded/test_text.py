from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.edge.engines.embedded.text import ModelText, TextError
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER, SPECIAL, tiny_text

TEXT = tiny_text()


@given(st.text(max_size=60))
def test_decoding_gives_back_what_was_encoded(text: str) -> None:
    tokens = TEXT.encode(text)
    assert all(token < TEXT.vocabulary for token in tokens)
    assert TEXT.decode(tokens) == text or any(special in text for special in SPECIAL)


@given(st.text(max_size=40), st.booleans())
def test_tokens_one_by_one_give_the_same_text_and_never_half_a_character(text: str, skip: bool) -> None:
    stream = TEXT.stream(skip_special_tokens=skip)
    tokens = TEXT.encode(text)
    pieces = [stream.feed(token) for token in tokens]
    pieces.append(stream.flush())
    assert "".join(pieces) == TEXT.decode(tokens, skip_special_tokens=skip)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, TEXT.vocabulary - 1), max_size=40))
def test_any_tokens_become_text(tokens: list[int]) -> None:
    stream = TEXT.stream()
    for token in tokens:
        stream.feed(token)
    stream.flush()


def test_words_are_tokens_and_the_vocabulary_is_small() -> None:
    assert len(TEXT.encode(" the world and the day")) == 5
    assert 400 < TEXT.vocabulary < 1_000
    assert TEXT.token_id("<|im_end|>") == END_OF_ANSWER
    assert TEXT.token_text(TEXT.encode(" world")[0]) == " world"
    assert tiny_text().encode("The river, the hill and the sea") == TEXT.encode("The river, the hill and the sea")


def test_a_chat_grows_at_its_end() -> None:
    first = TEXT.chat([{"role": "user", "content": "hello"}])
    answer = TEXT.encode(" world")
    later = TEXT.chat(
        [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": " world"},
            {"role": "user", "content": "again"},
        ]
    )
    assert later[: len(first) + len(answer)] == first + answer
    assert TEXT.decode(first) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    told = TEXT.chat([{"role": "user", "content": "x"}], [{"name": "f"}])
    assert TEXT.decode(told).startswith("<|im_start|>tools\n[{")


def test_a_model_without_a_template_says_so() -> None:
    bare = ModelText(TEXT._tokenizer)
    with pytest.raises(TextError, match="no chat template"):
        bare.chat([{"role": "user", "content": "x"}])
