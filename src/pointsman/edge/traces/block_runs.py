"""Block ids written short: how many are those of an earlier request, then runs of consecutive ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Run = tuple[int, int]
"""First id and how many."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading ids are equal. Halving compares whole slices, which is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def to_runs(ids: Iterable[int]) -> list[Run]:
    """Ids as runs."""
    runs: list[Run] = []
    start, count = 0, 0
    for block in ids:
        if count and block == start + count:
            count += 1
            continue
        if count:
            runs.append((start, count))
        start, count = block, 1
    if count:
        runs.append((start, count))
    return runs


def from_runs(runs: Iterable[Run]) -> tuple[int, ...]:
    """The ids of runs."""
    return tuple(block for start, count in runs for block in range(start, start + count))
