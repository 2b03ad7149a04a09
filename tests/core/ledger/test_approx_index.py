from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.core.ledger.approx_index import ApproxIndex

SLOTS = range(3)
CAPACITY = 6
TTL_MS = 50.0
CHAINS = st.lists(st.sampled_from("abc"), min_size=1, max_size=8).map("".join)


def chain(text: str) -> tuple[int, ...]:
    """Keys that stand for all leading parts of the text, as block keys do."""
    return tuple(hash(text[: i + 1]) & (2**64 - 1) for i in range(len(text)))


class AgainstNaive(RuleBasedStateMachine):
    """The index against a plain dictionary of (slot, key) → last use."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ApproxIndex(TTL_MS)
        self.now = 0.0
        self.held: dict[int, dict[int, float]] = {slot: {} for slot in SLOTS}
        self.order = 0
        self.rank: dict[tuple[int, int], int] = {}
        for slot in SLOTS:
            self.index.add_worker(slot, CAPACITY)

    @rule(slot=st.sampled_from(SLOTS), text=CHAINS)
    def record(self, slot: int, text: str) -> None:
        keys = chain(text)[:CAPACITY]
        mine = self.held[slot]
        known = 0
        while known < len(keys) and keys[known] in mine:
            known += 1
        assert self.index.record(slot, chain(text), self.now) == known
        for key in reversed(keys):
            mine[key] = self.now
            self.order += 1
            self.rank[slot, key] = self.order
        while len(mine) > CAPACITY:
            mine.pop(min(mine, key=lambda key: self.rank[slot, key]))

    @rule(passed=st.floats(0, 60))
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.index.expire(self.now)
        for mine in self.held.values():
            for key in [key for key, last in mine.items() if last < self.now - TTL_MS]:
                del mine[key]

    @rule(slot=st.sampled_from(SLOTS))
    def clear(self, slot: int) -> None:
        self.index.clear(slot)
        self.held[slot].clear()

    @rule(slot=st.sampled_from(SLOTS), text=CHAINS)
    def match(self, slot: int, text: str) -> None:
        matched = self.index.match(chain(text))
        for each, mine in self.held.items():
            blocks = 0
            for key in chain(text):
                if key not in mine:
                    break
                blocks += 1
            assert matched.get(each, 0) == blocks

    @invariant()
    def sizes_agree_and_are_bounded(self) -> None:
        for slot, mine in self.held.items():
            assert self.index.blocks_held(slot) == len(mine) <= CAPACITY
        assert len(self.index) == len(set().union(*self.held.values()))


AgainstNaive.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAgainstNaive = AgainstNaive.TestCase


def test_the_end_of_a_chain_goes_before_its_start() -> None:
    index = ApproxIndex(TTL_MS)
    index.add_worker(0, 4)
    index.record(0, chain("aaaa"), 0)
    index.record(0, chain("b"), 1)
    assert index.match(chain("aaaa")) == {0: 3}


def test_what_never_arrived_is_forgotten_and_what_was_there_before_stays() -> None:
    index = ApproxIndex(TTL_MS)
    index.add_worker(0, 10)
    index.record(0, chain("ab"), 0)
    first_new = index.record(0, chain("abcc"), 1)
    index.forget(0, chain("abcc"), first_new)
    assert index.match(chain("abcc")) == {0: 2}


def test_a_smaller_cache_holds_fewer_blocks_at_once() -> None:
    index = ApproxIndex(TTL_MS)
    index.add_worker(0, 10)
    index.record(0, chain("aabbcc"), 0)
    index.resize(0, 2)
    assert index.blocks_held(0) == 2
    assert index.match(chain("aabbcc")) == {0: 2}


def test_a_removed_worker_leaves_nothing() -> None:
    index = ApproxIndex(TTL_MS)
    index.add_worker(0, 10)
    index.record(0, chain("abc"), 0)
    index.remove_worker(0)
    assert len(index) == 0
    assert index.record(0, chain("abc"), 1) == 0
    assert index.match(chain("abc")) == {}
