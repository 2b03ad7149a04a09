"""Prompts of token ids for the decision benchmark, the same for us and for the peer. Standard library only."""

from __future__ import annotations

import random

BLOCK_TOKENS = 16
VOCABULARY = 49_152
KNOWN_SHARE = 0.9
HOLDERS = 2
"""Workers that hold what is known of a session."""


class TokenPrompts:
    """Sessions of which the first nine tenths of each prompt, in whole blocks, were computed before."""

    def __init__(self, sessions: int, tokens: int, seed: int) -> None:
        self._rng = random.Random(f"{seed} {tokens}")
        self._tokens = tokens
        known = int(tokens * KNOWN_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS
        self.known = [self._some(known) for _ in range(sessions)]

    def prompt(self, number: int) -> list[int]:
        """Prompt number so and so: the sessions take turns, and the last tenth is new each time."""
        known = self.known[number % len(self.known)]
        return known + self._some(self._tokens - len(known))

    def holders(self, workers: int) -> list[list[int]]:
        """For each session: the workers that hold what is known of it."""
        return [self._rng.sample(range(workers), HOLDERS) for _ in self.known]

    def _some(self, count: int) -> list[int]:
        return self._rng.choices(range(VOCABULARY), k=count)
