from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from pointsman.edge.engines.embedded.text import ModelText
from pointsman.edge.engines.embedded.tiny_text import END_OF_ANSWER, SPECIAL, tiny_text
from pointsman.edge.engines.openai_server.errors import ApiError
from pointsman.edge.engines.openai_server.requests import ChatBody, parse

TEXT = tiny_text()


def chat(*messages: tuple[str, object], text: ModelText = TEXT, **fields: object) -> list[int]:
    """Token ids of a chat of (role, content)."""
    body = {"messages": [{"role": role, "content": content} for role, content in messages], **fields}
    raw = json.dumps(body).encode()
    return text.chat(parse(raw, ChatBody), raw)


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
    # U+FFFD at the end looks like half a character.
    assert "".join(pieces) == TEXT.decode(tokens, skip_special_tokens=skip).rstrip("\ufffd")
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def spaced_text() -> ModelText:
    """A tokenizer as Llama 2 has it: a space is a part of a token, and is no text at the beginning."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581a", "\u2581\u2581", "b"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "</s>")])
    return ModelText(tokenizer)


SPACED = spaced_text()
SMILE = tuple(2 + byte for byte in "\U0001f600".encode())


@given(
    st.lists(st.sampled_from([(1,), SMILE, (258,), (259,), (260,), (261,)]), max_size=12),
    st.booleans(),
)
def test_a_token_that_is_not_shown_takes_no_space_with_it(words: list[tuple[int, ...]], skip: bool) -> None:
    tokens = [token for word in words for token in word]
    stream = SPACED.stream(skip_special_tokens=skip)
    text = "".join(map(stream.feed, tokens)) + stream.flush()
    assert text == SPACED.decode(tokens, skip_special_tokens=skip)


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
    first = chat(("user", "hello"))
    answer = TEXT.encode(" world")
    later = chat(("user", "hello"), ("assistant", " world"), ("user", "again"))
    assert later[: len(first) + len(answer)] == first + answer
    assert TEXT.decode(first) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert TEXT.decode(chat(("user", "x"), tools=[tool])).startswith("<|im_start|>tools\n[{")


def test_a_chat_is_read_as_vllm_reads_it() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(("user", parts)) == chat(("user", "a\nb"))
    opened = chat(("user", "x"), ("assistant", "so far"), add_generation_prompt=False, continue_final_message=True)
    assert TEXT.decode(opened).endswith("assistant\nso far")
    assert TEXT.decode(chat(("user", "x"), add_generation_prompt=False)).endswith("x<|im_end|>\n")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "no text"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"continue_final_message": True}, "add_generation_prompt"),
    ],
)
def test_a_chat_that_can_not_be_rendered_is_refused(fields: dict[str, object], message: str) -> None:
    raw = json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()
    with pytest.raises(ApiError, match=message) as refused:
        TEXT.chat(parse(raw, ChatBody), raw)
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ApiError, match="half of a surrogate pair"):
        TEXT.encode("a\ud800b")


def test_ids_out_of_range_have_no_text() -> None:
    for token in (-1, TEXT.vocabulary):
        with pytest.raises(ValueError, match="out of range"):
            TEXT.decode([token])


def test_a_model_without_a_template_says_so() -> None:
    with pytest.raises(ApiError, match="no chat template"):
        chat(("user", "x"), text=ModelText(TEXT._tokenizer))
