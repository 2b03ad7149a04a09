"""Where a text can be cut so that tokenizing the pieces apart gives what tokenizing the whole gives.

The tokenizers library first takes out the added tokens that are matched in the raw text (`normalized: false`, as
special tokens mostly are), leftmost and longest first, and then normalizes and tokenizes what is between them piece by
piece. So the text can be cut right before such a token, with these exceptions:

- `lstrip`: the token takes the white space before it, which would stay with the piece before;
- a token that begins with white space: the one before it may have taken that with `rstrip`;
- `single_word`, of any token: whether it matches depends on what is before and after, across a cut.

A cut never comes right behind a token: some pre-tokenizers (Metaspace with `prepend_scheme: first`) treat the text's
start in a way of its own, and a piece that begins with an added token has nothing at its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_Trie = dict[str, "_Trie"]
_END = ""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added token, as the tokenizer's file describes it."""

    content: str
    lstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class Boundaries:
    """Finds the cuts for one tokenizer."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        tokens = list(tokens)
        raw = [token for token in tokens if not token.normalized and token.content]
        usable = bool(raw) and not any(token.single_word for token in tokens)
        self._pattern = re.compile(_any_of(token.content for token in raw)) if usable else None
        self._longest = max((len(token.content) for token in raw), default=0)
        self._not_before = {token.content for token in raw if token.lstrip or token.content[0].isspace()}

    def cut(self, text: str) -> list[str]:
        """Pieces of the text, in order; every one but the first begins with an added token."""
        if self._pattern is None:
            return [text] if text else []
        pieces = []
        start = 0
        for match in self._pattern.finditer(text):
            at = match.start()
            if at > start and match.group() not in self._not_before:
                pieces.append(text[start:at])
                start = at
        if start < len(text):
            pieces.append(text[start:])
        return pieces

    def cut_prefix(self, text: str) -> list[str]:
        """Pieces of every text that begins with this one: without what may be cut otherwise when more text follows."""
        pieces = self.cut(text)
        dropped = 0
        while pieces and (dropped == 0 or dropped < self._longest):
            dropped += len(pieces.pop())
        return pieces


def _any_of(words: Iterable[str]) -> str:
    """A pattern that matches the longest of the words. A trie, because a tokenizer may have thousands of them."""
    trie: _Trie = {}
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[_END] = {}
    return _pattern_of(trie)


def _pattern_of(node: _Trie) -> str:
    branches = []
    for character, below in node.items():
        if character == _END:
            continue
        chain = re.escape(character)
        while len(below) == 1 and _END not in below:  # a chain without branches, so that the recursion stays flat
            ((following, below),) = below.items()
            chain += re.escape(following)
        branches.append(chain + _pattern_of(below))
    if not branches:
        return ""
    inner = branches[0] if len(branches) == 1 else "(?:" + "|".join(branches) + ")"
    return f"(?:{inner})?" if _END in node else inner
