"""Where a stream's tokens end that count: what the client got, and what its engine generated, need not end together.

Engines hold text back in which a stop string may begin, and the first bytes of a character. Tokens of which the client
has got nothing are generated anew, since nobody can see that; those of which it has got a part are kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.serving.migration.said import CONTENT, TEXT, Said

MOST_HELD_TOKENS = 64
"""That an engine is thought to hold back; stop strings are shorter."""
CONTEXT_TOKENS = 8
"""Of the prompt, decoded with the answer: some tokenizers write a word's first token otherwise at the beginning."""
_NOT_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"

Decode = Callable[[Sequence[int]], Awaitable[str]]
"""Text of token ids, by the engine's own tokenizer."""


class NoSeamError(PointsmanError):
    """It can't be told where the client's text ends among the tokens."""


def is_clean(said: Said, stops: tuple[str, ...]) -> bool:
    """Nothing is held back: the last token's text is out, and no stop string can begin in it."""
    return not stops and said.last_tokens == 1 and not said.last_empty


async def find_seam(said: Said, *, chat: bool, decode: Decode) -> tuple[int, str]:
    """Tokens to keep, and what of their text the client has not got. Raises NoSeamError."""
    context = list(said.prompt_ids or ())[-CONTEXT_TOKENS:]
    before = await decode(context) if context else ""
    text = said.text(CONTENT if chat else TEXT)
    reasoned = chat and len({channel for channel in said.pieces if channel != CONTENT}) > 0
    if reasoned:
        decoded = await decode([*context, *said.ids])
        if text and decoded.endswith(text):
            return len(said.ids), ""
        raise NoSeamError("its text is not the end of its tokens' text")
    found: tuple[int, str] | None = None
    for kept in range(len(said.ids), max(-1, len(said.ids) - MOST_HELD_TOKENS), -1):
        decoded = await decode([*context, *said.ids[:kept]]) if kept else before
        if not decoded.startswith(before):
            raise NoSeamError("the tokens' text does not begin with the prompt's")
        own = decoded[len(before) :]
        if not own.startswith(text):
            break
        if not own.endswith(_NOT_A_CHARACTER) or own == text:
            found = (kept, own[len(text) :])
        if own == text and not found:
            break
    if found is None:
        raise NoSeamError("the client's text is not that of any number of its tokens")
    return found
