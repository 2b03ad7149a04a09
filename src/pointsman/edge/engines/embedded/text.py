"""Text of a model: tokens of texts and chats, and text out of tokens that come one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import tokenizers

from pointsman.core.model.errors import ModelFileError
from pointsman.edge.prompts.errors import NotTokenizable
from pointsman.edge.prompts.meter import Meter, OverBudget
from pointsman.edge.prompts.template import ChatTemplate

_UNFINISHED = "\ufffd"
_MOST_UNFINISHED = 8
"""Tokens that are waited for until a character is whole; at worst each of its four bytes is a token."""
_CHAT_STEPS = 2_000_000
_CHAT_CHARACTERS = 8 * 2**20


class TextError(ModelFileError):
    """A prompt can't be made into tokens; the message is for whoever sent it."""


class TokenStream(Protocol):
    """Text of one answer, as its tokens come."""

    def feed(self, token: int) -> str:
        """Text that one more token completes; empty where a character is not whole yet."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class ModelText:
    """One model's tokenizer and chat template."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        template: ChatTemplate | None = None,
        *,
        vocabulary: int | None = None,
    ) -> None:
        """`template` None: the model can't chat. `vocabulary`: ids that the model knows; None: the tokenizer's."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template
        self.vocabulary = tokenizer.get_vocab_size(with_added_tokens=True) if vocabulary is None else vocabulary

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of tokens; bytes that are no characters become U+FFFD."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """How one token is called, as logprobs name it."""
        return self.decode([token])

    def token_id(self, content: str) -> int | None:
        """Id of one token by its content."""
        found: int | None = self._tokenizer.token_to_id(content)
        return found

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[object] | None = None,
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Token ids of a chat. Raises TextError where the template refuses it or there is none."""
        if self._template is None:
            raise TextError("this model has no chat template: use /v1/completions")
        try:
            text = self._template.render(
                [dict(message) for message in messages],
                Meter(_CHAT_STEPS, _CHAT_CHARACTERS),
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                variables=variables,
            )
        except (NotTokenizable, OverBudget) as error:
            raise TextError(str(error)) from None
        return self.encode(text, add_special_tokens=False)

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """For one answer."""
        return _Stream(self, skip_special_tokens)


class _Stream:
    """Decodes the tokens since the last whole character, with the last piece before them: spaces depend on it."""

    __slots__ = ("_before", "_pending", "_skip", "_text")

    def __init__(self, text: ModelText, skip_special_tokens: bool) -> None:
        self._text = text
        self._skip = skip_special_tokens
        self._before: list[int] = []
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        self._pending.append(token)
        new = self._new()
        if new.endswith(_UNFINISHED) and len(self._pending) < _MOST_UNFINISHED:
            return ""
        self._before, self._pending = self._pending, []
        return new

    def flush(self) -> str:
        new = self._new() if self._pending else ""
        self._pending = []
        return new

    def _new(self) -> str:
        known = self._text.decode(self._before, skip_special_tokens=self._skip)
        both = self._text.decode([*self._before, *self._pending], skip_special_tokens=self._skip)
        return both[len(known) :] if both.startswith(known) else self._text.decode(self._pending)
