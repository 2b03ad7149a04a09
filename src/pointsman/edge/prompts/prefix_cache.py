"""Tokens of pieces of prompts that were tokenized before, so that a growing conversation only pays for what is new.

A piece between two boundaries has the same tokens wherever it stands, so the pieces are cached one by one: a
conversation of n messages takes memory for n pieces, not for n prefixes, and a system prompt that many share is there
once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ENTRY_BYTES = 250
"""Text and bytes objects without their contents, and the entry in the dictionary."""


@dataclass(slots=True)
class PrefixCacheCounts:
    """Since the start, in characters: pieces differ too much in length for their number to say something."""

    hit_characters: int = 0
    missed_characters: int = 0
    evicted_pieces: int = 0


class PrefixCache:
    """Piece of text → its packed tokens; the least recently used go first. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.counts = PrefixCacheCounts()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._tokens: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Memory that the entries take, about."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._tokens)

    def look_up(self, pieces: Sequence[str]) -> list[bytes | None]:
        """Packed tokens of each piece, None where they are not known."""
        with self._lock:
            found = [self._tokens.get(piece) for piece in pieces]
            for piece, tokens in zip(pieces, found, strict=True):
                if tokens is None:
                    self.counts.missed_characters += len(piece)
                else:
                    self.counts.hit_characters += len(piece)
                    self._tokens.move_to_end(piece)
        return found

    def complete(self, pieces: Sequence[str], found: Sequence[bytes | None], encode: Callable[[str], bytes]) -> bytes:
        """Tokens of all pieces, one after the other; `encode` is called for those that look_up did not find."""
        new: dict[str, bytes] = {}
        parts = []
        for piece, tokens in zip(pieces, found, strict=True):
            if tokens is None:
                tokens = new.get(piece)
                if tokens is None:
                    tokens = new[piece] = encode(piece)
            parts.append(tokens)
        if new:
            with self._lock:
                self._add(new)
        return b"".join(parts)

    def _add(self, new: dict[str, bytes]) -> None:
        for piece, tokens in new.items():
            size = _size_bytes(piece, tokens)
            if piece in self._tokens or size > self._max_bytes:
                continue
            self._tokens[piece] = tokens
            self._bytes += size
        while self._bytes > self._max_bytes:
            self._bytes -= _size_bytes(*self._tokens.popitem(last=False))
            self.counts.evicted_pieces += 1


def _size_bytes(piece: str, tokens: bytes) -> int:
    width = 1 if piece.isascii() else 4  # at most; latin-1 and most of the rest take less
    return len(piece) * width + len(tokens) + _ENTRY_BYTES
