"""Continuous batching: what one step computes, and where its KV goes.

Each step takes the running sequences in the order in which they were admitted (that is, decodes first, then the one
prompt that may be half done), then admits waiting ones, first come first served, until the token budget, the sequence
limit or the KV blocks are spent. When a running sequence finds no block, the youngest one is preempted: it loses its
blocks, goes back to the head of the queue and is computed again.
"""

from __future__ import annotations

from collections import deque

from pointsman.core.engine_model.block_hash import block_hash
from pointsman.core.engine_model.block_pool import BlockPool
from pointsman.core.engine_model.config import EngineConfig
from pointsman.core.engine_model.events import BlockRemoved, BlockStored, KvEvent
from pointsman.core.engine_model.sequence import Sequence, SequenceState


class Batch:
    """What one step computes."""

    __slots__ = ("context_tokens", "decodes", "entries", "prefill_tokens")

    def __init__(self) -> None:
        self.entries: list[tuple[Sequence, int]] = []
        """Sequence and how many of its tokens are computed."""
        self.decodes = 0
        self.context_tokens = 0
        """KV tokens that the decodes read."""
        self.prefill_tokens = 0

    def add(self, sequence: Sequence, count: int) -> None:
        """Put `count` tokens of a sequence into the step."""
        self.entries.append((sequence, count))
        if count == 1 and sequence.computed >= sequence.prompt_length:
            self.decodes += 1
            self.context_tokens += sequence.computed + 1
        else:
            self.prefill_tokens += count


class Scheduler:
    """Queue, running set and block pool of one engine. `events` collects KV events until somebody takes them."""

    __slots__ = (
        "_block_size",
        "_budget",
        "_max_num_seqs",
        "_prefix_caching",
        "events",
        "pool",
        "preemptions",
        "running",
        "waiting",
    )

    def __init__(self, config: EngineConfig) -> None:
        self._block_size = config.block_size
        self._budget = config.max_batched_tokens
        self._max_num_seqs = config.max_num_seqs
        self._prefix_caching = config.prefix_caching
        self.pool = BlockPool(config.num_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In the order of admission, oldest first."""
        self.events: list[KvEvent] = []
        self.preemptions = 0

    def schedule(self, now_ms: float) -> Batch:
        """Choose the next step and reserve its blocks. Empty only when there is nothing to compute."""
        batch = Batch()
        budget = self._budget
        preemptions = self.preemptions
        running, size = self.running, self._block_size
        # This loop turns once a sequence and step: nothing is called in it that a plain decode does not need.
        for sequence in running[:]:
            computed = sequence.computed
            end = len(sequence.tokens)
            if end - computed > budget:
                end = computed + budget
            # Without a new block and without one that gets full there is nothing to reserve.
            if (end >= sequence.blocks_announced * size + size or end > len(sequence.blocks) * size) and (
                sequence.state is not SequenceState.RUNNING or not self._reserve(sequence, end)
            ):
                break  # preempted for an older one or for lack of blocks: all younger ones are, too
            batch.add(sequence, end - computed)
            budget -= end - computed
            if not budget:
                break
        if self.waiting and self.preemptions == preemptions:
            self._admit(batch, budget, now_ms)
        return batch

    def drop(self, sequence: Sequence, state: SequenceState) -> None:
        """Take a sequence out, whatever it is doing, and free its blocks."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        self.release(sequence)
        sequence.state = state

    def release(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence."""
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.blocks_announced = 0

    def _admit(self, batch: Batch, budget: int, now_ms: float) -> None:
        waiting, running = self.waiting, self.running
        while waiting and budget and len(running) < self._max_num_seqs:
            sequence = waiting[0]
            count = self._start(sequence, budget)
            if not count:
                return
            waiting.popleft()
            sequence.state = SequenceState.RUNNING
            if sequence.scheduled_ms is None:
                sequence.scheduled_ms = now_ms
            running.append(sequence)
            batch.add(sequence, count)
            budget -= count

    def _start(self, sequence: Sequence, budget: int) -> int:
        """Reserve blocks for the first chunk of a waiting sequence: tokens in it, 0 when blocks are short."""
        size, pool = self._block_size, self.pool
        length = len(sequence.tokens)
        # The last token is always computed: its logits are what the next token comes from.
        hits = pool.lookup(sequence.hashes, (length - 1) // size) if self._prefix_caching else []
        computed = len(hits) * size
        count = min(length - computed, budget)
        new_blocks = -(-(computed + count) // size) - len(hits)
        revived = sum(1 for block in hits if pool.is_free(block))
        if new_blocks > pool.free - revived:
            return 0
        pool.acquire(hits)
        sequence.blocks = hits + self._allocate(new_blocks)
        sequence.blocks_announced = len(hits)
        sequence.computed = computed
        if sequence.cached_tokens is None:
            sequence.cached_tokens = computed
        self._announce(sequence, computed + count)
        return count

    def _reserve(self, sequence: Sequence, end: int) -> bool:
        """Blocks for the tokens of a running sequence up to `end`; False when it had to be preempted itself."""
        missing = -(-end // self._block_size) - len(sequence.blocks)
        if missing > 0:
            while missing > self.pool.free:
                victim = self.running[-1]
                self._preempt(victim)
                if victim is sequence:
                    return False
            sequence.blocks += self._allocate(missing)
        if end // self._block_size > sequence.blocks_announced:
            self._announce(sequence, end)
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.running.pop()
        self.release(victim)
        victim.computed = 0
        victim.state = SequenceState.WAITING
        victim.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(victim)

    def _allocate(self, count: int) -> list[int]:
        pool = self.pool
        blocks = pool.allocate(count)
        if pool.evicted:
            self.events.append(BlockRemoved(tuple(pool.evicted)))
            pool.evicted.clear()
        return blocks

    def _announce(self, sequence: Sequence, end: int) -> None:
        """Put the blocks that are full once tokens up to `end` are computed into the prefix cache."""
        size = self._block_size
        first, last = sequence.blocks_announced, end // size
        if last <= first:
            return
        sequence.blocks_announced = last
        if not self._prefix_caching:
            return
        tokens, hashes = sequence.tokens, sequence.hashes
        while len(hashes) < last:
            start = len(hashes) * size
            hashes.append(block_hash(tokens[start : start + size], hashes[-1] if hashes else sequence.seed))
        for number in range(first, last):
            self.pool.mark_cached(sequence.blocks[number], hashes[number])
        self.events.append(
            BlockStored(
                block_hashes=tuple(hashes[first:last]),
                parent_block_hash=hashes[first - 1] if first else None,
                token_ids=tuple(tokens[first * size : last * size]),
                block_size=size,
                lora_name=sequence.request.lora_name,
                cache_salt=None if first else sequence.request.cache_salt,
            )
        )
