"""LegNumbers: numbers of transfers, for engines that meet under one."""

from __future__ import annotations

import random
import secrets

LEAST, MOST = 2**42, 2**62
"""Smaller ones are an engine's own (TensorRT-LLM), larger ones are signed in some engines."""


class LegNumbers:
    """From a place of chance on, one after the other: none twice here, hardly one that another front end gives.

    `seed`: of tests, which get the same numbers each time.
    """

    def __init__(self, seed: int | None = None) -> None:
        span = MOST - LEAST
        self._next = secrets.randbelow(span) if seed is None else random.Random(seed).randrange(span)

    def next(self) -> int:
        """The number of a new transfer."""
        self._next += 1
        return LEAST + self._next % (MOST - LEAST)
