"""Quota: how many workers may be left out at once for what traffic says of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


def allowed_out(usable: int, most_out: float) -> int:
    """Of so many workers that could otherwise be used; one always stays."""
    return max(0, min(usable - 1, math.floor(usable * most_out + 1e-9)))


def kept_in(
    groups: Mapping[tuple[str, str], Sequence[str]], left_out: Iterable[tuple[float, str]], most_out: float
) -> frozenset[str]:
    """Those that have to be used all the same.

    `groups`: workers that could otherwise be used, by model and role: they stand in for each other. `left_out`: since
    when, and whom. The first ones stay out: where many follow there may be a common cause.
    """
    room = {group: allowed_out(len(workers), most_out) for group, workers in groups.items()}
    in_order = [worker for _, worker in sorted(left_out)]
    groups_of: dict[str, list[tuple[str, str]]] = {worker: [] for worker in in_order}
    for group, workers in groups.items():
        for worker in groups_of.keys() & workers:
            groups_of[worker].append(group)
    kept: set[str] = set()
    for worker in in_order:
        of = groups_of[worker]
        if any(room[group] <= 0 for group in of):
            kept.add(worker)
            continue
        for group in of:
            room[group] -= 1
    return frozenset(kept)
