"""The exact index against a naive one: a set of (slot, medium, key), and each engine's own names for keys."""

from __future__ import annotations

import gc
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.core.ledger.prefix_index import PrefixIndex
from pointsman.core.model.token_keys import GPU, BlockHash

SLOTS = range(3)
MEDIA = (GPU, "cpu")
CHAINS = st.lists(st.sampled_from("ab"), min_size=1, max_size=6).map("".join)
SHIFTS = st.sampled_from([0, 1])


def keys_of(text: str) -> list[int]:
    return [hash(text[: i + 1]) & (2**60 - 1) for i in range(len(text))]


def hashes_of(slot: int, keys: list[int], shift: int) -> list[BlockHash]:
    """Engines 0 and 1 use the same hashes, engine 2 its own, in bytes; a shifted engine means other blocks by them."""
    if slot == 2:
        return [key.to_bytes(8, "big") for key in keys]
    return [key + shift for key in keys]


class AgainstNaive(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[tuple[int, str], set[int]] = {}
        self.meant: dict[int, dict[BlockHash, int]] = {slot: {} for slot in SLOTS}
        self.shift = dict.fromkeys(SLOTS, 0)
        self.seat = {slot: self.index.take_seat() for slot in SLOTS}

    @rule(slot=st.sampled_from(SLOTS), medium=st.sampled_from(MEDIA), text=CHAINS, start=st.integers(0, 3))
    def store(self, slot: int, medium: str, text: str, start: int) -> None:
        keys = keys_of(text)[start:]
        hashes = hashes_of(slot, keys, self.shift[slot])
        mine = self.held.setdefault((slot, medium), set())
        assert self.index.store(self.seat[slot], medium, hashes, keys) == len(set(keys) - mine)
        mine |= set(keys)
        self.meant[slot].update(zip(hashes, keys, strict=True))

    @rule(slot=st.sampled_from(SLOTS), medium=st.sampled_from(MEDIA), text=CHAINS, last=st.booleans())
    def remove(self, slot: int, medium: str, text: str, last: bool) -> None:
        keys = keys_of(text)[-1:] if last else keys_of(text)
        mine = self.held.setdefault((slot, medium), set())
        removed = self.index.remove(self.seat[slot], medium, hashes_of(slot, keys, self.shift[slot]))
        assert sorted(removed) == sorted(set(keys) & mine)
        mine -= set(keys)

    @rule(slot=st.sampled_from(SLOTS), shift=SHIFTS)
    def restart(self, slot: int, shift: int) -> None:
        """Everything is gone; the new process may use other hashes for the same blocks, or the same for others."""
        self.index.retire(self.seat[slot])
        self.seat[slot] = self.index.take_seat()
        for medium in MEDIA:
            self.held.pop((slot, medium), None)
        self.meant[slot].clear()
        self.shift[slot] = shift

    @rule(text=CHAINS)
    def match(self, text: str) -> None:
        keys = keys_of(text)
        for medium in MEDIA:
            matched = self.index.match(keys, medium)
            for slot in SLOTS:
                assert matched.get(self.seat[slot], 0) == self.run(keys, self.held.get((slot, medium), set()))
        anywhere = self.index.match_any_medium(keys)
        for slot in SLOTS:
            union = set().union(*(self.held.get((slot, medium), set()) for medium in MEDIA))
            assert anywhere.get(self.seat[slot], 0) == self.run(keys, union)

    @staticmethod
    def run(keys: list[int], mine: set[int]) -> int:
        blocks = 0
        while blocks < len(keys) and keys[blocks] in mine:
            blocks += 1
        return blocks

    @invariant()
    def holds_exactly_what_was_said(self) -> None:
        for slot in SLOTS:
            for medium in MEDIA:
                mine = self.held.get((slot, medium), set())
                assert self.index.keys(self.seat[slot], medium) == mine
                assert self.index.count(self.seat[slot], medium) == len(mine)
            for block_hash, key in self.meant[slot].items():
                held = any(key in self.held.get((slot, medium), set()) for medium in MEDIA)
                assert self.index.key_of(self.seat[slot], block_hash) == (key if held else None)


AgainstNaive.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAgainstNaive = AgainstNaive.TestCase


def test_what_an_engine_does_not_hold_is_no_parent() -> None:
    index = PrefixIndex()
    index.store(0, GPU, [1], [11])
    assert index.key_of(0, 1) == 11
    assert index.key_of(1, 1) is None, "another engine's block of that name"
    index.remove(0, GPU, [1])
    assert index.key_of(0, 1) is None


def test_integers_and_bytes_never_mix() -> None:
    index = PrefixIndex()
    index.store(0, GPU, [(1).to_bytes(8, "big")], [11])
    assert index.remove(0, GPU, [1]) == []
    assert index.count(0) == 1


@pytest.mark.parametrize("alike", [True, False])
def test_nothing_grows_when_workers_come_and_go(alike: bool) -> None:
    """Whether engines hash alike or not."""
    index = PrefixIndex()
    rng = random.Random(1)
    seats = [index.take_seat() for _ in range(4)]
    for turn in range(8):
        for number, seat in enumerate(seats):
            index.retire(seat)
            seats[number] = index.take_seat()
        for _ in range(200):
            keys = [rng.getrandbits(60) for _ in range(50)]
            for seat in seats:
                hashes = keys if alike else [rng.getrandbits(64) for _ in keys]
                index.store(seat, GPU, hashes, keys)
                index.remove(seat, GPU, hashes[10:])
        names = len(index._key_of) + len(index._old_key_of)
        assert all(index.count(seat) == 2_000 for seat in seats)
        assert names <= 4 * (8_000 + 4096), turn
        assert sum(len(shelf.log) for shelf in index._shelves.values()) <= 2 * 8_000 + 4 * (4096 + 50)
        assert max(seats) < 12, "seats are taken again"
    for seat in seats:
        index.retire(seat)
    index.sweep(10**6)
    gc.collect()
    assert len(index) == 0


def test_engines_that_hash_differently_cost_no_cleaning_for_ever() -> None:
    index = PrefixIndex()
    for number in range(2):
        seat = index.take_seat()
        for start in range(0, 20_000, 100):
            index.store(
                seat, GPU, range(start + 10**6 * number, start + 100 + 10**6 * number), range(start, start + 100)
            )
    rounds = 0
    for i in range(2_000):
        before = bool(index._old_key_of)
        index.store(1, GPU, [10**7 + i], [10**7 + i])
        rounds += bool(index._old_key_of) and not before
    assert rounds <= 1


def test_a_seat_is_swept_a_little_at_a_time() -> None:
    index = PrefixIndex()
    seat = index.take_seat()
    index.store(seat, GPU, range(50_000), range(50_000))
    index.retire(seat)
    assert 45_000 < len(index) < 50_000
    assert index.take_seat() != seat
    index.sweep(10_000)
    assert len(index) < 40_000
    index.sweep(10**6)
    assert len(index) == 0
    assert index.take_seat() == seat


def test_a_tier_that_announces_a_block_with_less_than_it_is_keyed_by_changes_no_name() -> None:
    index = PrefixIndex()
    index.store(0, GPU, [1], [11])  # salted
    index.store(0, "cpu", [1], [99])  # the same block, its salt left out
    assert index.keys(0, "cpu") == {11}
    assert index.remove(0, GPU, [1]) == [11]
    assert index.remove(0, "cpu", [1]) == [11]
    assert len(index) == 0


def test_names_are_cleaned_a_few_at_a_time_and_none_that_is_needed_is_lost() -> None:
    index = PrefixIndex()
    seat = index.take_seat()
    index.store(seat, GPU, range(20_000), range(20_000))
    index.retire(seat)
    index.sweep(10**6)
    index.store(0, GPU, range(50_000, 51_000), range(50_000, 51_000))
    looked_at = 0
    while index._old_key_of or looked_at == 0:
        before = len(index._old_key_of)
        index.store(0, GPU, [90_000 + looked_at], [90_000 + looked_at])
        assert before - len(index._old_key_of) <= 8 or not before
        looked_at += 1
    assert len(index._key_of) <= 1_000 + looked_at
    assert index.remove(0, GPU, range(50_000, 51_000)) == list(range(50_000, 51_000))
