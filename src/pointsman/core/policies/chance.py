"""The chance of one decision: the same for the same seed and request, whatever was decided before."""

from __future__ import annotations

import random

import xxhash


def decision_chance(seed: int, request_id: str) -> random.Random:
    """Random numbers for one decision. Live and simulated front ends draw from it, so a record can be decided again."""
    return random.Random(xxhash.xxh3_64_intdigest(request_id.encode(), seed & 0xFFFF_FFFF_FFFF_FFFF))
