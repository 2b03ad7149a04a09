"""The sequences that get a token in every step, counted together: no step costs more for there being many of them.

`ticks` counts steps. A sequence that joined has `offset + ticks` tokens, so the sum of all contexts, the step in which
one finishes, needs its next block or fills one are known in advance.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right

from pointsman.core.engine_model.sequence import Sequence

NEVER = 1 << 62
"""A step that does not come."""


class Decoders:
    """Sequences that decode. Between two steps `opened == ticks`; in a step it is one ahead."""

    __slots__ = (
        "_ends",
        "_fills",
        "_offsets",
        "_phases",
        "_serial",
        "block_size",
        "count",
        "opened",
        "ticks",
        "writers",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.ticks = 0
        """Steps that are done."""
        self.opened = 0
        """Steps that have begun: their blocks are there."""
        self.count = 0
        self.writers: dict[Sequence, None] = {}
        """Those that have contents, in the order in which they joined."""
        self._serial = 0
        self._offsets = 0
        # Heaps of (step, serial, sequence); entries of sequences that left stay until they come up.
        self._ends: list[tuple[int, int, Sequence]] = []
        self._fills: list[tuple[int, int, Sequence]] = []
        # How many need a block in steps with step % block_size == index.
        self._phases = [0] * block_size

    @property
    def context_tokens(self) -> int:
        """KV tokens that the next step reads, with those that it writes."""
        return self._offsets + self.count * self.ticks

    def join(self, sequence: Sequence, *, hashed: bool) -> None:
        """From the next step on it gets a token each; all but its last token are computed."""
        self._serial += 1
        sequence.serial = self._serial
        offset = sequence.offset = sequence.still_length - self.ticks
        sequence.decoders = self
        self.count += 1
        self._offsets += offset
        self._phases[(1 - offset) % self.block_size] += 1
        heapq.heappush(self._ends, (sequence.target_length - 1 - offset, self._serial, sequence))
        if sequence.writes_tokens:
            self.writers[sequence] = None
        if hashed:
            self._push_fill(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It gets no more; what it has is written down."""
        sequence.still_length = sequence.length
        sequence.still_computed = sequence.computed
        sequence.still_blocks = sequence.blocks
        sequence.decoders = None
        self.count -= 1
        self._offsets -= sequence.offset
        self._phases[(1 - sequence.offset) % self.block_size] -= 1
        if sequence.writes_tokens:
            del self.writers[sequence]

    def next_end(self) -> int:
        """The first step that gives a sequence its last token."""
        return self._first(self._ends)

    def next_fill(self) -> int:
        """The first step that fills a block which has a hash then."""
        return self._first(self._fills)

    def ended(self) -> list[Sequence]:
        """Take those out that have all their tokens."""
        ended = []
        while self._first(self._ends) < self.ticks:
            sequence = heapq.heappop(self._ends)[2]
            self.leave(sequence)
            ended.append(sequence)
        return ended

    def filled(self, tick: int) -> list[Sequence]:
        """Sequences that fill a block in step `tick`; call `fill_next` for each once it is announced."""
        filled = []
        while self._first(self._fills) <= tick:
            filled.append(heapq.heappop(self._fills)[2])
        return filled

    def fill_next(self, sequence: Sequence) -> None:
        """Its last block is announced: look out for the next one."""
        self._push_fill(sequence)

    def demand(self, first: int, last: int) -> int:
        """Blocks that steps `first` to `last` (exclusive) need."""
        size, phases = self.block_size, self._phases
        cycles, rest = divmod(last - first, size)
        blocks = cycles * self.count
        if rest:
            start = first % size
            stop = start + rest
            blocks += sum(phases[start:stop])
            if stop > size:
                blocks += sum(phases[: stop - size])
        return blocks

    def steps_within(self, blocks: int, most: int) -> int:
        """How many steps, `most` at most, can be done after those that have begun with so many free blocks."""
        first = self.opened
        if self.count * -(-most // self.block_size) <= blocks or self.demand(first, first + most) <= blocks:
            return most
        return bisect_right(range(most + 1), blocks, key=lambda steps: self.demand(first, first + steps)) - 1

    def _push_fill(self, sequence: Sequence) -> None:
        number = len(sequence.keys)
        tick = (number + 1) * self.block_size - sequence.offset
        if number < sequence.hashable_blocks:
            heapq.heappush(self._fills, (tick, sequence.serial, sequence))

    def _first(self, heap: list[tuple[int, int, Sequence]]) -> int:
        while heap:
            tick, serial, sequence = heap[0]
            if sequence.decoders is not None and sequence.serial == serial:
                return tick
            heapq.heappop(heap)
        return NEVER
