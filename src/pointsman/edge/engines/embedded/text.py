"""Text of a model: tokens of texts and chats, and text out of tokens that come one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import tokenizers

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.requests import ChatBody, TokenizeBody
from pointsman.edge.engines.openai_server.text import TokenStream
from pointsman.edge.prompts.chat import ChatRenderer
from pointsman.edge.prompts.errors import NotTokenizable
from pointsman.edge.prompts.meter import Meter, OverBudget
from pointsman.edge.wire.openai import ChatRequest

_UNFINISHED = "\ufffd"
_MOST_UNFINISHED = 8
"""Tokens that are waited for until a character is whole; at worst each of its four bytes is a token."""
_CHAT_STEPS = 2_000_000
_CHAT_CHARACTERS = 8 * 2**20


class _AnyModel(ChatRequest, kw_only=True):
    model: str | None = None  # type: ignore[assignment]  # engines take null for the one that they serve


_read_chat = msgspec.json.Decoder(_AnyModel)


class ModelText:
    """One model's tokenizer and chat template."""

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        renderer: ChatRenderer | None = None,
        *,
        vocabulary: int | None = None,
    ) -> None:
        """`renderer` None: the model can't chat. `vocabulary`: ids that the model knows; None: the tokenizer's."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(number for number, token in added.items() if token.special)
        self._renderer = renderer
        self._vocabulary = tokenizer.get_vocab_size(with_added_tokens=True) if vocabulary is None else vocabulary

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return self._vocabulary

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ApiError for characters that are none."""
        try:
            # Without places in the text, which take as long as the tokens.
            (encoded,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (TypeError, UnicodeEncodeError):  # half of a surrogate pair
            raise bad_request("the prompt has characters that are none: half of a surrogate pair.", "prompt") from None
        return list(encoded.ids)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of tokens; bytes that are no characters become U+FFFD. Raises ValueError for an id out of range."""
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise ValueError(f"token id {token} is out of range; the vocabulary has {self._vocabulary} tokens")
        return self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """How one token is called, as logprobs name it."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def token_id(self, content: str) -> int | None:
        """Id of one token by its content."""
        found: int | None = self._tokenizer.token_to_id(content)
        return found

    def chat(self, body: ChatBody | TokenizeBody, raw: bytes) -> list[int]:
        """Token ids of a chat, as vLLM makes them. Raises ApiError where the template refuses it or there is none."""
        if self._renderer is None:
            raise bad_request("this model has no chat template: use /v1/completions.", "messages")
        try:
            # The template sees members of messages that `body` does not know.
            prompt = self._renderer.text(_read_chat.decode(raw), Meter(_CHAT_STEPS, _CHAT_CHARACTERS))
        except (NotTokenizable, OverBudget, msgspec.ValidationError) as error:
            raise bad_request(f"{error}.", "messages") from None
        if not prompt.complete:
            raise bad_request("parts of messages that are no text are not supported by this model.", "messages")
        return self.encode(prompt.text, add_special_tokens=prompt.add_special_tokens)

    def stream(self, *, skip_special_tokens: bool = True) -> TokenStream:
        """For one answer."""
        return _Stream(self._tokenizer, self._special if skip_special_tokens else frozenset())


class _Stream:
    """Decodes the tokens since the last whole character, with the last piece before them: spaces depend on it."""

    __slots__ = ("_before", "_pending", "_skipped", "_tokenizer")

    def __init__(self, tokenizer: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._before: list[int] = []
        self._pending: list[int] = []

    def feed(self, token: int) -> str:
        if token in self._skipped:
            return ""  # what follows it is read as if it were not there
        self._pending.append(token)
        new = self._new()
        if new.endswith(_UNFINISHED) and len(self._pending) < _MOST_UNFINISHED:
            return ""
        self._before, self._pending = self._pending, []
        return new

    def flush(self) -> str:
        new = self._new() if self._pending else ""
        self._pending = []
        # A part of a character is none, also where nothing follows.
        return new.rstrip(_UNFINISHED)

    def _new(self) -> str:
        known = self._decode(self._before)
        both = self._decode([*self._before, *self._pending])
        return both[len(known) :] if both.startswith(known) else self._decode(self._pending)

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)
