"""How much of the prompts a prefix cache would have had: one that forgets nothing, and LRU caches of every size.

One pass gives all sizes. An LRU cache of n blocks holds the n blocks that were used last, so a block is found in it
when fewer than n others were used since (its stack distance; Mattson et al. 1970). Blocks of a prompt count as used
from the last to the first, as engines evict: the end of a prompt goes before its beginning. Then all blocks that a
prompt shares with one earlier request, and with no later one, lie next to one another in the stack, and one number
says where they begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pointsman.core.workload.block_arrays import BlockArrays, Int64s
from pointsman.core.workload.trace import Trace


@dataclass(frozen=True, slots=True)
class Reuse:
    """What of a trace's prompts had been computed before. Tokens of one cache that all requests go through."""

    prompt_tokens: int
    """Of all requests."""
    block_tokens: int
    distinct_tokens: int
    """Of all different blocks: what a cache that forgets nothing ends with."""
    reusable_tokens: Int64s
    """For each request: tokens of its prompt that a cache that forgets nothing would have had."""
    same_session_tokens: int
    """Those of them that the request's own session had used last."""
    _above: Int64s
    _blocks: Int64s
    _missing: Int64s
    """Stretches of blocks found: how many others lie above in the stack, how many blocks, and by how many tokens the
    last one is not full."""

    @property
    def share(self) -> float:
        """Of prompt tokens, with a cache that forgets nothing."""
        return int(self.reusable_tokens.sum()) / self.prompt_tokens if self.prompt_tokens else 0.0

    def hit_tokens(self, cache_tokens: float) -> int:
        """Tokens found in one LRU cache of that size."""
        room = max(0, int(cache_tokens)) // self.block_tokens if self.block_tokens else 0
        found = np.clip(room - self._above, 0, self._blocks)
        return int(found.sum()) * self.block_tokens - int(self._missing[found == self._blocks].sum())

    def share_with(self, cache_tokens: float) -> float:
        """Of prompt tokens, with one LRU cache of that size."""
        return self.hit_tokens(cache_tokens) / self.prompt_tokens if self.prompt_tokens else 0.0

    def cache_tokens_for(self, part: float) -> int:
        """The smallest LRU cache that finds that part (0 to 1) of what one that forgets nothing finds."""
        wanted = part * int(self.reusable_tokens.sum())
        low, high = 0, int((self._above + self._blocks).max(initial=0))
        while low < high:
            middle = (low + high) // 2
            if self.hit_tokens(middle * self.block_tokens) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low * self.block_tokens


def reuse(trace: Trace) -> Reuse:
    """Measure a trace, in the order of its arrivals."""
    arrays = BlockArrays(trace)
    requests = trace.requests
    last_use = np.full(arrays.count, -1, dtype=np.int64)
    used = _Counts(len(requests))
    stretches: list[tuple[int, int, int]] = []
    reusable = np.zeros(len(requests), dtype=np.int64)
    same_session = 0
    for position, request in enumerate(requests):
        blocks = arrays.prompt(position)
        found = last_use[blocks]
        hits = int(np.argmax(found < 0)) if (found < 0).any() else len(found)
        if hits:
            missing = max(0, hits * trace.block_tokens - request.prompt_tokens)
            reusable[position] = hits * trace.block_tokens - missing
            found = found[:hits]
            edges = [0, *(np.flatnonzero(found[1:] != found[:-1]) + 1).tolist(), hits]
            for start, end in pairwise(edges):
                other = int(found[start])
                short = missing if end == hits else 0
                stretches.append((used.after(other), end - start, short))
                if request.session is not None and requests[other].session == request.session:
                    same_session += (end - start) * trace.block_tokens - short
        left = arrays.left(position, request)
        if left.size:
            before = last_use[left]
            for other, count in zip(*np.unique(before, return_counts=True), strict=True):
                if other >= 0:
                    used.add(int(other), -int(count))
            used.add(position, len(left))
            last_use[left] = position
    columns = np.array(stretches, dtype=np.int64).reshape(-1, 3).T
    return Reuse(
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        block_tokens=trace.block_tokens,
        distinct_tokens=arrays.distinct() * trace.block_tokens,
        reusable_tokens=reusable,
        same_session_tokens=same_session,
        _above=columns[0],
        _blocks=columns[1],
        _missing=columns[2],
    )


class _Counts:
    """How many blocks were last used by each request; a Fenwick tree, so that sums take log n steps."""

    def __init__(self, size: int) -> None:
        self._tree = [0] * (size + 1)
        self._total = 0

    def add(self, position: int, count: int) -> None:
        self._total += count
        place = position + 1
        while place < len(self._tree):
            self._tree[place] += count
            place += place & -place

    def after(self, position: int) -> int:
        """The sum over all requests after this one."""
        place, total = position + 1, 0
        while place:
            total += self._tree[place]
            place -= place & -place
        return self._total - total
