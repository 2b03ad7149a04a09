"""Which of several things the next request is about."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from pointsman.core.model.errors import TraceError


class Popularity:
    """Draws 0 .. `count` - 1, the i-th with weight 1 / (i + 1) ** `exponent`: 0 is uniform, 1 is Zipf's law."""

    def __init__(self, count: int, exponent: float = 0.0) -> None:
        if count < 1 or not exponent >= 0:
            raise TraceError(f"one of {count} things with a Zipf exponent of {exponent} can't be drawn")
        with np.errstate(over="ignore"):  # what nobody ever draws has weight 0
            weights = 1.0 / np.arange(1, count + 1, dtype=np.float64) ** exponent
        self._cumulated = np.cumsum(weights)

    def draw(self, rng: np.random.Generator) -> int:
        """One of them."""
        place = np.searchsorted(self._cumulated, rng.random() * self._cumulated[-1], side="right")
        return min(int(place), len(self._cumulated) - 1)

    def draw_different(self, rng: np.random.Generator, number: int) -> list[int]:
        """That many of them, all different, in the order in which they were drawn."""
        number = min(number, len(self._cumulated))
        found: dict[int, None] = {}
        # Drawing again what came twice is fast until few are left; then those are drawn among themselves.
        for _ in range(8 * number):
            found[self.draw(rng)] = None
            if len(found) == number:
                return list(found)
        weights = np.diff(self._cumulated, prepend=0.0)
        weights[list(found)] = 0.0
        if np.count_nonzero(weights) < number - len(found):
            # So steep that the weights of the rest are too small for a float: the next most popular ones.
            rest_in_order = (place for place in range(len(weights)) if place not in found)
            return [*found, *islice(rest_in_order, number - len(found))]
        rest = rng.choice(len(weights), number - len(found), replace=False, p=weights / weights.sum())
        return [*found, *rest.tolist()]


def passes(count: int, rng: np.random.Generator, *, shuffle_each: bool) -> Iterator[int]:
    """0 .. `count` - 1 in a shuffled order, for ever: the same order in each pass, or a new one."""
    order = rng.permutation(count).tolist()
    while True:
        yield from order
        if shuffle_each:
            order = rng.permutation(count).tolist()
