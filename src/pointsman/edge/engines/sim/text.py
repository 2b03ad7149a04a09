"""Text of a simulated model, as its server uses it."""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.edge.engines.openai_server.errors import bad_request
from pointsman.edge.engines.openai_server.requests import ChatBody, TokenizeBody
from pointsman.edge.engines.openai_server.text import TokenStream
from pointsman.edge.engines.sim.chat_template import render_chat
from pointsman.edge.engines.sim.tokenizer import VOCABULARY_SIZE, SimTokenizer


class SimText:
    """A tokenizer without a vocabulary file, and one fixed chat template."""

    def __init__(self, tokenizer: SimTokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = _Pieces(tokenizer)

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        return VOCABULARY_SIZE

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; there are no special tokens around it."""
        return self._tokenizer.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens. Raises ValueError for an id out of range."""
        return self._tokenizer.decode(tokens)

    def token_text(self, token: int) -> str:
        """Text of one token on its own."""
        return self._tokenizer.text_of(token)

    def chat(self, body: ChatBody | TokenizeBody, raw: bytes) -> list[int]:
        """Token ids of a chat; raises `ApiError` for content that is not text."""
        if body.messages is None:
            raise bad_request("messages are missing.", "messages")
        return render_chat(self._tokenizer, body.messages, body.tools, open_answer=body.add_generation_prompt)

    def stream(self, *, skip_special_tokens: bool) -> TokenStream:
        """Answers are made of whole words: nothing is kept between tokens."""
        return self._stream


class _Pieces:
    """Text of tokens one by one."""

    __slots__ = ("feed",)

    def __init__(self, tokenizer: SimTokenizer) -> None:
        self.feed = tokenizer.text_of

    def flush(self) -> str:
        return ""
