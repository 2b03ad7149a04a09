"""A tokenizer without a vocabulary file: deterministic, and decoding gives back exactly what was encoded.

Text is UTF-8. Up to four lower-case ASCII letters, with one space before them or not, are one token; every other byte
is a token of its own. So "hello world" is `hell`, `o`, ` wor`, `ld`: about three characters a token in English.

Ids: 0..15 special tokens, 16..271 bytes, then letter groups without and with a leading space. A group's number counts
all shorter groups first, then in alphabetical order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IM_START, IM_END = 1, 2

_FIRST_BYTE = 16
_FIRST_GROUP = _FIRST_BYTE + 256
_GROUP_LETTERS = 4
_GROUPS: int = sum(26**length for length in range(1, _GROUP_LETTERS + 1))
VOCABULARY_SIZE = _FIRST_GROUP + 2 * _GROUPS
_PIECE = re.compile(r" ?[a-z]{1,4}|.", re.DOTALL)
_MEMO_LIMIT = 200_000

_WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they one you "
    "all her she out so up said what its than into them can only time new some two may then do any like my now over "
    "such our man me even most made also did many off must well back way down long just each say how work life never "
    "day got good world very year still see own old much mr we him who will no more if about get through take know "
    "road line rail lamp gate bell coal iron wood tree hill lake sea rain snow wind sun moon star bird fish wolf bear "
    "deer hand foot head eyes face hair door wall roof room desk book page pen ink word name song tale king boat ship "
    "sail deck tide wave sand rock salt corn rice bean seed root leaf rose lily pear plum fig nut oat hay barn farm "
    "mill well town city shop bank park hall tram bus car cart path lane turn left east west true kind warm cold hot "
    "cool soft hard fast slow high low deep wide thin flat full free blue red pink grey gold tin lead zinc copy move "
    "read call wait stop open shut push pull lift drop hold give find keep"
)


class SimTokenizer:
    """Turns text into token ids and back. Keeps a bounded memory of pieces for speed only."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        words = dict.fromkeys(word for word in _WORDS.split() if len(word) <= _GROUP_LETTERS)
        self.output_ids = tuple(_piece_id(f" {word}") for word in words)
        """Tokens that answers are made of: short words, each with a leading space."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Names of special tokens inside it are ordinary text."""
        # latin-1 makes each byte of the UTF-8 text one character, so that the pattern can see bytes.
        pieces = _PIECE.findall(text.encode("utf-8", "surrogatepass").decode("latin-1"))
        ids = self._ids
        try:
            return [ids[piece] for piece in pieces]
        except KeyError:
            return [self._learn(piece) for piece in pieces]

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of token ids; bytes that are not UTF-8 become U+FFFD. Raises ValueError for an id out of range."""
        return b"".join(map(token_bytes, tokens)).decode("utf-8", "replace")

    def text_of(self, token: int) -> str:
        """Text of one token on its own."""
        text = self._texts.get(token)
        if text is None:
            if len(self._texts) >= _MEMO_LIMIT:
                self._texts.clear()
            text = self._texts[token] = self.decode((token,))
        return text

    def _learn(self, piece: str) -> int:
        found = self._ids.get(piece)
        if found is None:
            if len(self._ids) >= _MEMO_LIMIT:
                self._ids.clear()
            found = self._ids[piece] = _piece_id(piece)
        return found


def token_bytes(token: int) -> bytes:
    """UTF-8 bytes of one token. Raises ValueError for an id out of range."""
    if token < 0 or token >= VOCABULARY_SIZE:
        raise ValueError(f"token id {token} is out of range; the vocabulary has {VOCABULARY_SIZE} tokens")
    if token < _FIRST_BYTE:
        return (SPECIALS[token] if token < len(SPECIALS) else f"<|reserved_{token}|>").encode()
    if token < _FIRST_GROUP:
        return bytes((token - _FIRST_BYTE,))
    number = token - _FIRST_GROUP
    space, number = divmod(number, _GROUPS)
    length = 1
    while number >= 26**length:
        number -= 26**length
        length += 1
    letters = bytearray(length)
    for position in range(length - 1, -1, -1):
        number, letter = divmod(number, 26)
        letters[position] = 97 + letter
    return b" " + letters if space else bytes(letters)


def _piece_id(piece: str) -> int:
    letters = piece[1:] if len(piece) > 1 and piece[0] == " " else piece
    if not "a" <= letters[0] <= "z":
        return _FIRST_BYTE + ord(piece)
    number = 0
    for letter in letters:
        number = number * 26 + ord(letter) - 97
    for length in range(1, len(letters)):
        number += 26**length
    return _FIRST_GROUP + number + (_GROUPS if piece[0] == " " else 0)
