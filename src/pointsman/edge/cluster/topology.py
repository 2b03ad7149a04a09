"""How far an engine is from the front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def topology_distance(levels: Sequence[str], here: Mapping[str, str], there: Mapping[str, str]) -> int:
    """Number, from 1, of the farthest level at which the two differ; 0: at none of those that both name.

    `levels`: from near to far. With host, rack and zone, workers in another zone are 3 away.
    """
    known = [here.get(level) is not None and there.get(level) is not None for level in levels]
    far = [i for i, level in enumerate(levels, 1) if known[i - 1] and here[level] != there[level]]
    return max(far, default=0)
