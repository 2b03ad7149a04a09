from __future__ import annotations

import pytest

from pointsman.core.engine_model.block_pool import BlockPool, Key


def cached(pool: BlockPool, hashes: list[int]) -> list[Key]:
    """Blocks of one sequence, cached under the hashes and still held."""
    pool.allocate(len(hashes))
    return pool.store(hashes)


def test_a_released_block_stays_reusable_until_it_is_handed_out_again() -> None:
    pool = BlockPool(3)
    blocks = cached(pool, [11, 12])
    pool.release(blocks, 0)
    assert pool.free == 3
    assert pool.lookup([11, 12, 13], 3) == blocks
    pool.acquire(blocks)
    assert (pool.free, pool.used) == (1, 2)
    assert [pool.references(block) for block in blocks] == [1, 1]


def test_lookup_stops_at_the_first_gap_and_at_the_limit() -> None:
    pool = BlockPool(4)
    blocks = cached(pool, [1, 2, 3])
    assert pool.lookup([1, 9, 3], 3) == blocks[:1]
    assert pool.lookup([1, 2, 3], 2) == blocks[:2]


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    pool.release(cached(pool, [1, 2, 3]), 0)
    pool.allocate(1)
    assert pool.evicted == [3]
    pool.allocate(1)
    assert pool.evicted == [3, 2]
    assert pool.cached_hashes() == [1]


def test_least_recently_used_prefix_goes_first() -> None:
    pool = BlockPool(2)
    old = cached(pool, [1])
    new = cached(pool, [2])
    pool.release(old, 0)
    pool.release(new, 0)
    pool.acquire(old)
    pool.release(old, 0)
    pool.allocate(1)
    assert pool.evicted == [2]


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, [1])
    pool.acquire(blocks)
    pool.release(blocks, 0)
    assert not pool.is_free(blocks[0])
    pool.release(blocks, 0)
    assert pool.is_free(blocks[0])


def test_a_hash_is_evicted_with_its_last_copy() -> None:
    pool = BlockPool(2)
    first, second = cached(pool, [7]), cached(pool, [7])
    pool.release(first, 0)
    pool.allocate(1)
    assert pool.evicted == []
    assert pool.lookup([7], 1) == second
    pool.release(second, 0)
    pool.allocate(1)
    assert pool.evicted == [7]
    assert pool.lookup([7], 1) == []


def test_the_cache_can_be_cleared_only_at_rest() -> None:
    pool = BlockPool(2)
    blocks = cached(pool, [1])
    assert not pool.clear_cache()
    pool.release(blocks, 0)
    assert pool.clear_cache()
    assert pool.cached_hashes() == []
    pool.allocate(2)
    assert pool.evicted == []


def test_more_than_there_is_can_not_be_allocated() -> None:
    pool = BlockPool(1)
    with pytest.raises(IndexError, match="2 blocks wanted, 1 free"):
        pool.allocate(2)


def test_only_what_lies_free_now_is_evicted_of_blocks_given_back_together() -> None:
    pool = BlockPool(6)
    together = cached(pool, [1, 2, 3, 4, 5])
    pool.allocate(1)
    pool.release(together, 1)
    pool.acquire(together[:3])
    assert (pool.free, pool.used) == (3, 3)
    pool.allocate(3)
    assert pool.evicted == [5, 4]
    assert sorted(pool.cached_hashes()) == [1, 2, 3]
    pool.release(together[:3], 0)
    assert pool.free_among(together[:3]) == 3
    pool.allocate(2)
    assert pool.evicted == [5, 4, 3, 2]


def test_lists_of_free_blocks_do_not_keep_those_taken_up_again() -> None:
    pool = BlockPool(100)
    blocks = cached(pool, list(range(50)))
    pool.release(blocks, 0)
    for kept in range(49, 0, -1):
        # One more of the last ones stays behind each time.
        pool.acquire(blocks[:kept])
        pool.release(blocks[:kept], 0)
    assert sum(len(run.keys) for run in pool._runs) <= 2 * 50
    pool.allocate(100)
    assert pool.evicted == [*range(49, -1, -1)]


def test_a_copy_serves_once_the_first_one_is_gone() -> None:
    pool = BlockPool(4)
    first, second, third = cached(pool, [7]), cached(pool, [7]), cached(pool, [7])
    pool.release(first, 0)
    pool.allocate(2)
    assert (pool.lookup([7], 1), pool.evicted) == (second, [])
    (again,) = cached_after_release(pool, third)
    assert pool.lookup([7], 1) == second
    pool.acquire(second)
    assert pool.references(second[0]) == 2
    assert again is not second[0]
    assert pool.cached_hashes() == [7]


def cached_after_release(pool: BlockPool, blocks: list[Key]) -> list[Key]:
    """The same content once more, in the place of a copy of it."""
    pool.release(blocks, 0)
    return cached(pool, [7])


def test_one_hash_twice_in_a_sequence_makes_two_blocks() -> None:
    pool = BlockPool(4)
    blocks = cached(pool, [5, 5])
    assert (len(set(blocks)), pool.used) == (2, 2)
    pool.release(blocks, 0)
    pool.allocate(4)
    assert pool.evicted == [5]
    assert pool.cached_hashes() == []
