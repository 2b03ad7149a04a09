"""Pages: where each block of the KV cache lies.

The scheduler counts blocks and names cached ones; here they get ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Names

from pointsman.core.engine_model.block_pool import Key
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.scheduler import Scheduler
from pointsman.core.engine_model.sequence import Sequence
from pointsman.core.engine_model.step import Batch
from pointsman.core.model.errors import EngineError
from pointsman.edge.engines.embedded.computed_sequence import ComputedSequence


class Pages:
    """Ids from 1 to `blocks`. A block that can be reused has its id by name, others belong to a sequence."""

    def __init__(self, blocks: int) -> None:
        self._free = list(range(blocks, 0, -1))
        self._of_name: dict[Key, int] = {}
        self._plain: dict[Sequence, list[int]] = {}
        """Blocks of a sequence behind its named ones."""

    @property
    def free(self) -> int:
        """Ids that neither a sequence nor a name has."""
        return len(self._free)

    def of_name(self, name: Key) -> int | None:
        """The block that has a name; None when there is none."""
        return self._of_name.get(name)

    def table(self, sequence: Sequence) -> list[int]:
        """Ids of a sequence's blocks, from its beginning."""
        names = sequence.keys
        plain = self._filled(sequence, sequence.blocks - len(names))
        return [self._of_name[name] for name in names] + plain

    def named(self, sequence: Sequence, first: int) -> None:
        """The sequence's blocks from number `first` on have got names."""
        names = sequence.keys[first:]
        plain = self._filled(sequence, len(names))
        for name, block in zip(names, plain, strict=False):
            self._of_name[name] = block
        del plain[: len(names)]

    def released(self, sequence: Sequence) -> None:
        """The sequence gives all its blocks back; named ones keep what is in them."""
        self._free += self._plain.pop(sequence, ())

    def evicted(self, names: Names[Key]) -> None:
        """Named blocks whose contents are not needed any more."""
        self._free += [self._of_name.pop(name) for name in names]

    def _filled(self, sequence: Sequence, count: int) -> list[int]:
        """The sequence's plain blocks, at least so many."""
        plain = self._plain.setdefault(sequence, [])
        while len(plain) < count:
            if not self._free:
                raise EngineError("the scheduler handed out a block that is nowhere: its books and pages disagree")
            plain.append(self._free.pop())
        return plain


class PagedScheduler(Scheduler):
    """A scheduler that knows where each block lies."""

    __slots__ = ("pages",)

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.pages = Pages(config.num_blocks)
        self.pool.on_evicted = self.pages.evicted

    def release(self, sequence: Sequence) -> None:
        """As the scheduler does, and its pages too."""
        self.pages.released(sequence)
        super().release(sequence)

    def _start(self, sequence: Sequence, budget: int, batch: Batch, *, remote: bool) -> int:
        if not (isinstance(sequence, ComputedSequence) and sequence.tells_prompt):
            return super()._start(sequence, budget, batch, remote=remote)
        # What is cached has no logits: all of it is computed, and cached as ever.
        caching, self._prefix_caching = self._prefix_caching, False
        try:
            count = super()._start(sequence, budget, batch, remote=remote)
        finally:
            self._prefix_caching = caching
        if count:
            self._announce(sequence, count)
        return count

    def _announce(self, sequence: Sequence, end: int) -> None:
        first = len(sequence.keys)
        super()._announce(sequence, end)
        if len(sequence.keys) > first:
            self.pages.named(sequence, first)
