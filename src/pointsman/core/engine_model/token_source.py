"""Output tokens without a model: a pure function of everything that stands before them.

The digest of a context t[0..n-1] is `salt + sum((t[i] + 1) * (2i + 1) * K) mod 2^64`. It is order sensitive, can be
extended by one token in O(1), and depends on nothing but the tokens: asking again with prompt + answer so far as the
prompt goes on with the same tokens.
"""

from __future__ import annotations

from array import array

import numpy as np

_MASK = (1 << 64) - 1
# Odd constants with mixed bits; the values have no further meaning.
_K = 0x9E3779B97F4A7C15
_M1 = 0xD6E8FEB86659FD93
_M2 = 0xA0761D6478BD642F


def context_digest(tokens: array[int], salt: int = 0) -> int:
    """Digest of a whole context. `tokens` is an array of unsigned 32-bit ids."""
    values = np.frombuffer(tokens, dtype=np.uint32).astype(np.uint64)
    weights = np.arange(1, 2 * len(values) + 1, 2, dtype=np.uint64)
    # In place, because the wrap-around at 2^64 is wanted and arrays do it without a warning.
    values += np.uint64(1)
    values *= weights
    total = int(values.sum(dtype=np.uint64)) * _K
    return (total + salt * _M2) & _MASK


def extend_digest(digest: int, token: int, position: int) -> int:
    """Digest after one more token, which stands at `position` (counted from 0)."""
    return (digest + (token + 1) * (2 * position + 1) * _K) & _MASK


def choose(digest: int, length: int, count: int) -> int:
    """Index below `count` of the token that follows a context of `length` tokens with this digest."""
    mixed = ((digest ^ (digest >> 31)) * _M1 + length * _M2) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * _M2) & _MASK
    return (mixed ^ (mixed >> 32)) % count
