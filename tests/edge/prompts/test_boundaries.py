"""Pieces tokenized apart give the tokens of the whole, whatever the tokenizer."""

from __future__ import annotations

from array import array

import tokenizers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pointsman.edge.prompts.boundaries import AddedToken, Boundaries
from pointsman.edge.prompts.prefix_cache import PrefixCache
from pointsman.edge.prompts.tokenizer import PromptTokenizer

FRAGMENTS = [
    *(
        "<|start|>",
        "<|end|>",
        "<s>",
        "<tool>",
        "<mask>",
        "<sep>",
        "x",
        "go",
        "lazy",
        "The quick fox",
        " ",
        "\n",
        "\n\n",
    ),
    *(
        "<|",
        "|>",
        "12",
        "ö",
        "日本",
        "🙂",
        "<|end|>x<|start|>",
        "<｜User｜>",
        "<｜end▁of▁sentence｜>",
        "</think>",
        "e\u0301",
    ),
]
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=14).map("".join)


def encode(tokenizer: PromptTokenizer, text: str) -> list[int]:
    pieces = tokenizer.cut(text)
    return list(array("I", tokenizer.cache.complete(pieces, tokenizer.cache.look_up(pieces), tokenizer.encode_piece)))


@given(conversation=st.lists(texts, min_size=1, max_size=4))
@example(conversation=["x<|end|>x<|start|>", "<sep> \n\n<|end|>", " <mask><mask>"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_cached_encoding_is_plain_encoding(any_tokenizer: tokenizers.Tokenizer, conversation: list[str]) -> None:
    """Of a conversation that grows, so that the later prompts come from the cache."""
    cached = PromptTokenizer(any_tokenizer, PrefixCache(5_000))

    for end in range(1, len(conversation) + 1):
        text = "<|end|>\n".join(conversation[:end])
        assert "".join(cached.cut(text)) == text
        assert encode(cached, text) == any_tokenizer.encode(text, add_special_tokens=False).ids


@given(text=texts, more=texts)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_pieces_of_a_prefix_are_pieces_of_the_whole(any_tokenizer: tokenizers.Tokenizer, text: str, more: str) -> None:
    tokenizer = PromptTokenizer(any_tokenizer, PrefixCache(0))
    pieces = tokenizer.cut_prefix(text)

    assert tokenizer.cut(text + more)[: len(pieces)] == pieces


def boundaries(*contents: str, **flags: bool) -> Boundaries:
    return Boundaries(AddedToken(content, **flags) for content in contents)


def test_cuts_are_before_tokens() -> None:
    found = boundaries("<a>", "<b>")

    assert found.cut("<a>one<b>two<a>") == ["<a>one", "<b>two", "<a>"]
    assert found.cut("zero<a>") == ["zero", "<a>"]
    assert found.cut("") == []


def test_the_longest_token_matches() -> None:
    assert boundaries("<a", "<a>b", "b<a").cut("x<a>b<a") == ["x", "<a>b", "<a"]


def test_no_cut_where_white_space_belongs_to_the_token() -> None:
    assert boundaries("<a>", lstrip=True).cut("one <a>") == ["one <a>"]
    assert boundaries("\n\n").cut("one\n\ntwo") == ["one\n\ntwo"]


def test_no_cut_with_tokens_that_look_around_or_that_normalizing_may_hide() -> None:
    assert boundaries("<a>", single_word=True).cut("one<a>") == ["one<a>"]
    assert boundaries("<a>", normalized=True).cut("one<a>") == ["one<a>"]


def test_what_may_still_change_is_no_piece_of_a_prefix() -> None:
    found = boundaries("<a>", "<a>longer")

    assert found.cut_prefix("one<a>two and more<a>lon") == ["one"]
    assert found.cut_prefix("one") == []


def test_thousands_of_tokens_take_no_longer_to_find() -> None:
    many = boundaries(*(f"<|reserved_{number}|>" for number in range(3000)))

    assert many.cut("<|reserved_" * 2000 + "<|reserved_17|>tail") == ["<|reserved_" * 2000, "<|reserved_17|>tail"]
