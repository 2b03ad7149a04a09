"""What a server needs of the text of its model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pointsman.edge.engines.openai_server.requests import ChatBody, TokenizeBody


class TokenStream(Protocol):
    """Text of one answer, as its tokens come."""

    def feed(self, token: int) -> str:
        """Text that one more token completes; empty where a character is not whole yet."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class ServedText(Protocol):
    """Text of one model. All that encodes raises `ApiError` for what can't be done."""

    @property
    def vocabulary(self) -> int:
        """Token ids are below it."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a prompt."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens. Raises ValueError for an id out of range."""
        ...

    def token_text(self, token: int) -> str:
        """Text of one token on its own."""
        ...

    def chat(self, body: ChatBody | TokenizeBody, raw: bytes) -> list[int]:
        """Token ids of a chat; `raw` is the body as it came."""
        ...

    def stream(self, *, skip_special_tokens: bool) -> TokenStream:
        """For one answer."""
        ...
