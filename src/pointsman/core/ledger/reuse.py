"""Reuse: how often what was computed is used again from a cache, and which share of what caches lose is needed again.

Evicted blocks that nobody else holds are lost, and remembered until as much is lost again as the workers hold together.
A remembered block that is computed again was needed, one that is forgotten was not. The share is of the tokens whose
fate is known so: those that were lost just now say nothing yet. A block of which another worker still has a copy is not
lost.

Memory is bounded by looking at a sample of the blocks only, chosen by a hash of their keys, when there are many (as in
Waldspurger et al., "Efficient MRC construction with SHARDS", 2015): the share among them is that among all.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence

MOST_REMEMBERED = 16_384
"""Blocks of the sample."""
_MIX = 0x9E37_79B9_7F4A_7C15
"""An odd number near 2^64 divided by the golden ratio: the high bits of its products depend on all bits of a key."""
_WORD = (1 << 64) - 1
_LEAST_WINDOW = 256
"""Blocks: a cache that holds fewer forgets no faster."""
_KEEP_ASKED = 1 - 1 / 1_000
"""What of the tokens found and computed before counts on with each further request."""


class Reuse:
    """Of the workers that serve one model."""

    def __init__(self) -> None:
        self._gone: OrderedDict[int, int] = OrderedDict()
        """Key of an evicted block of the sample → its tokens, oldest first."""
        self._shift = 0
        """One block of 2^shift is in the sample."""
        self._needed = 0.0
        self._not_needed = 0.0
        self.found_tokens = 0.0
        """Of prompts, in caches; older ones count less."""
        self.computed_tokens = 0.0
        """Of prompts, not found; older ones count less."""

    @property
    def share(self) -> float:
        """Of lost tokens, what was needed again: 0 to 1."""
        return self._needed / self.seen if self.seen else 0.0

    @property
    def seen(self) -> float:
        """Lost tokens that the share rests on, older ones counting less."""
        return self._needed + self._not_needed

    def asked(self, found_tokens: int, computed_tokens: int) -> None:
        """A prompt was sent somewhere: what of it was in the cache there, and what was not."""
        self.found_tokens = self.found_tokens * _KEEP_ASKED + found_tokens
        self.computed_tokens = self.computed_tokens * _KEEP_ASKED + computed_tokens

    def evicted(
        self, keys: Sequence[int], block_tokens: int, held_blocks: int, held_elsewhere: Callable[[int], bool]
    ) -> None:
        """A worker evicted these blocks.

        Args:
            held_blocks: what all workers hold together.
            held_elsewhere: whether another one, or another tier, still has a block.
        """
        window = max(_LEAST_WINDOW, held_blocks)
        while window >> self._shift > MOST_REMEMBERED:
            self._halve()
        lost = [key for key in self._sample(keys) if not held_elsewhere(key)]
        gone = self._gone
        for key in lost:
            gone[key] = block_tokens
            gone.move_to_end(key)
        most = window >> self._shift
        forgotten = 0
        while len(gone) > most:
            forgotten += gone.popitem(last=False)[1]
        keep = math.exp(-(len(lost) << self._shift) / window)
        self._needed *= keep
        self._not_needed = (self._not_needed + (forgotten << self._shift)) * keep

    def computed(self, keys: Sequence[int]) -> None:
        """A worker computed these blocks; those that were lost before were needed again."""
        gone = self._gone
        if not gone:
            return
        tokens = 0
        for key in keys:
            if key in gone:
                tokens += gone.pop(key)
        if tokens:
            self._needed += tokens << self._shift

    def moved(self, keys: Sequence[int]) -> None:
        """These blocks are held in another tier: they are not lost."""
        if self._gone:
            for key in keys:
                self._gone.pop(key, None)

    def _sample(self, keys: Sequence[int]) -> Sequence[int]:
        if not self._shift:
            return keys
        below = 1 << (64 - self._shift)
        return [key for key in keys if key * _MIX & _WORD < below]

    def _halve(self) -> None:
        self._shift += 1
        kept = self._sample(list(self._gone))
        self._gone = OrderedDict((key, self._gone[key]) for key in kept)
