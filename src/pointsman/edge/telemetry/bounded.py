"""Counters by what comes from outside, bounded: a label must not have a value for each client that thinks of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MOST_VALUES = 50
OTHERS = "others"


class BoundedCounter(Counter[K], Generic[K]):
    """A counter of at most `most` keys; what comes later counts under `others`."""

    def __init__(self, others: K, most: int = MOST_VALUES) -> None:
        super().__init__()
        self._others = others
        self._most = most

    def add(self, key: K, number: int = 1) -> None:
        """Count so many more."""
        before = self.get(key)
        if before is None and len(self) >= self._most:
            key, before = self._others, self.get(self._others)
        self[key] = number if before is None else before + number
