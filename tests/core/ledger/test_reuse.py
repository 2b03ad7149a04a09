from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.reuse import MOST_REMEMBERED, Reuse
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import GPU, KeySpec
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerSpec, worker_id

SPEC = KeySpec(16)


def nobody(key: int) -> bool:
    return False


class TestShare:
    def test_of_what_was_lost_the_part_that_was_computed_again(self) -> None:
        reuse = Reuse()
        assert (reuse.share, reuse.seen) == (0.0, 0.0)
        reuse.evicted(range(1_000), 16, 1_000, nobody)
        assert (reuse.share, reuse.seen) == (0.0, 0.0), "of none of them it is known"
        reuse.computed(range(900, 1_000))
        assert (reuse.share, reuse.seen) == (1.0, 1_600.0)
        reuse.computed(range(900, 1_000))
        assert reuse.seen == 1_600.0, "once each"
        reuse.evicted(range(1_000, 1_400), 16, 1_000, nobody)
        assert reuse.share == pytest.approx(100 / 400), "1,300 are remembered no more: the 300 oldest"

    def test_a_block_that_somebody_else_has_is_no_loss(self) -> None:
        reuse = Reuse()
        reuse.evicted(range(1_000), 16, 1_000, lambda key: key < 500)
        reuse.computed(range(1_000))
        assert reuse.seen == 500 * 16

    def test_what_went_to_another_tier_is_no_loss(self) -> None:
        reuse = Reuse()
        reuse.evicted(range(100), 16, 1_000, nobody)
        reuse.moved(range(40))
        reuse.computed(range(100))
        assert reuse.seen == 60 * 16

    def test_after_a_cacheful_of_losses_a_block_was_not_needed(self) -> None:
        reuse = Reuse()
        reuse.evicted(range(1_000), 16, 1_000, nobody)
        reuse.evicted(range(1_000, 1_900), 16, 1_000, nobody)
        reuse.computed(range(900))
        assert reuse.share == 0.0
        assert reuse.seen > 0.0
        reuse.computed(range(900, 1_000))
        assert reuse.share > 0.0

    def test_what_was_seen_fades(self) -> None:
        reuse = Reuse()
        reuse.evicted(range(1_000), 16, 1_000, nobody)
        reuse.computed(range(1_000))
        assert reuse.share == 1.0
        for start in range(10_000, 16_000, 1_000):
            reuse.evicted(range(start, start + 1_000), 16, 1_000, nobody)
        assert reuse.share < 0.01
        assert reuse.seen < 2 * 1_000 * 16

    def test_a_sample_of_many_blocks_tells_the_same(self) -> None:
        held = 4 * MOST_REMEMBERED
        reuse = Reuse()
        rng = random.Random(1)
        batches = [[rng.getrandbits(60) for _ in range(2_000)] for _ in range(150)]
        for number, batch in enumerate(batches):
            reuse.evicted(batch, 16, held, nobody)
            if number >= 10:
                reuse.computed([key for key in batches[number - 10] if rng.random() < 0.3])
        assert len(reuse._gone) <= MOST_REMEMBERED
        assert reuse.share == pytest.approx(0.3, abs=0.03)

    def test_what_was_found_and_computed_lately(self) -> None:
        reuse = Reuse()
        for _ in range(10_000):
            reuse.asked(0, 100)
        for _ in range(10_000):
            reuse.asked(90, 10)
        assert reuse.found_tokens == pytest.approx(90_000, rel=0.01)
        assert reuse.computed_tokens == pytest.approx(10_000, rel=0.01)

    def test_small_keys_in_a_row_are_sampled_evenly(self) -> None:
        """Simulated blocks have such."""
        reuse = Reuse()
        held = 8 * MOST_REMEMBERED
        reuse.evicted(range(held), 16, held, nobody)
        assert len(reuse._gone) == pytest.approx(held >> reuse._shift, rel=0.02)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 20)), max_size=60))
    def test_it_is_a_share(self, happened: list[tuple[bool, int, int]]) -> None:
        reuse = Reuse()
        for evicted, first, count in happened:
            keys = range(first, first + count)
            if evicted:
                reuse.evicted(keys, 16, 300, lambda key: key % 7 == 0)
            else:
                reuse.computed(keys)
        assert 0.0 <= reuse.share <= 1.0
        assert reuse.seen >= 0.0


class TestInTheLedger:
    def fleet(self, *, exact: bool, capacity: int = 1_600) -> Ledger:
        ledger = Ledger(text_block_bytes=64)
        for name in ("a", "b"):
            spec = WorkerSpec(
                worker_id(name), f"http://{name}", "vllm", ("m",), kv_capacity_tokens=capacity, block_size_tokens=16
            )
            ledger.apply(ev.WorkerJoined(spec, 0.0))
            ledger.apply(ev.HealthRead(spec.id, 0.0, True, True, ""))
            if exact:
                ledger.apply(ev.KvFeedChanged(spec.id, 0.0, ev.KvFeedState.COMPLETE, "all"))
        return ledger

    def request(self, number: int, keys: range, *, exact: bool) -> Request:
        blocks = BlockKeys(tuple(keys), 16, BlockUnit.TOKENS, 16 * len(keys))
        return Request(f"r{number}", "m", 0.0, 16 * len(keys), blocks, {SPEC: blocks} if exact else {})

    def outlook(self, ledger: Ledger):
        return ledger.view(self.request(0, range(1), exact=False)).outlook

    def held(self, ledger: Ledger) -> list[int]:
        return ledger.view(self.request(0, range(1), exact=False)).column(Column.HELD_TOKENS).tolist()

    def test_engines_that_tell(self) -> None:
        ledger = self.fleet(exact=True)
        a, b = worker_id("a"), worker_id("b")

        def stored(worker: str, keys: range, medium: str = GPU) -> None:
            tokens = b""
            ledger.apply(ev.BlocksStored(worker, 0.0, tuple(keys), None, tokens, SPEC, medium=medium, keys=tuple(keys)))

        stored(a, range(50))
        stored(b, range(40, 50))
        assert self.held(ledger) == [800, 160]
        ledger.apply(ev.BlocksRemoved(a, 0.0, tuple(range(50))))
        assert self.held(ledger) == [0, 160]
        assert self.outlook(ledger).reuse == 0.0
        stored(b, range(10))
        assert (self.outlook(ledger).reuse, self.outlook(ledger).evictions_seen) == (1.0, 160.0)
        stored(a, range(20, 40), medium="cpu")
        stored(b, range(20, 50))
        assert self.outlook(ledger).evictions_seen == 160.0, "a tier still held those"
        # As many blocks again are lost as can be remembered, and nobody needs them.
        for first in range(1_000, 1_600, 100):
            stored(a, range(first, first + 100))
            ledger.apply(ev.BlocksRemoved(a, 0.0, tuple(range(first, first + 100))))
        assert 0.0 < self.outlook(ledger).reuse < 0.1
        ledger.apply(ev.BlocksCleared(b, 0.0))
        assert self.held(ledger) == [0, 0]

    def test_engines_that_say_nothing(self) -> None:
        """By what was sent: a cache of 100 blocks that got 120 lost 20."""
        ledger = self.fleet(exact=False)
        a, b = worker_id("a"), worker_id("b")

        def sent(number: int, keys: range, worker: str) -> None:
            ledger.apply(ev.Admitted(self.request(number, keys, exact=False), 0.0))
            ledger.apply(ev.Dispatched(f"r{number}", worker, float(number)))

        sent(1, range(80), a)
        assert self.held(ledger) == [1_280, 0]
        sent(2, range(100, 140), a)
        assert self.held(ledger) == [1_600, 0]
        assert self.outlook(ledger).evictions_seen == 0.0
        sent(3, range(80), b)
        assert self.outlook(ledger).reuse == 1.0
        assert self.outlook(ledger).evictions_seen == pytest.approx(20 * 16, rel=1e-2)
        assert self.outlook(ledger).found_tokens == 0.0
        assert self.outlook(ledger).computed_tokens == pytest.approx(200 * 16, rel=1e-2)

    def test_workers_of_other_models_and_no_workers_have_no_part(self) -> None:
        ledger = self.fleet(exact=True)
        spec = WorkerSpec(worker_id("c"), "http://c", "vllm", ("other",), kv_capacity_tokens=160, block_size_tokens=16)
        ledger.apply(ev.WorkerJoined(spec, 0.0))
        ledger.apply(ev.BlocksStored(spec.id, 0.0, (1, 2), None, b"", SPEC, keys=(1, 2)))
        ledger.apply(ev.BlocksRemoved(spec.id, 0.0, (1, 2)))
        assert self.outlook(ledger).evictions_seen == 0.0
        nobody_serves = Request("x", "absent", 0.0, 16)
        assert ledger.view(nobody_serves).outlook.reuse == 0.0

    def test_a_fleet_that_is_renewed_begins_anew(self) -> None:
        ledger = self.fleet(exact=True)
        a, b = worker_id("a"), worker_id("b")
        ledger.apply(ev.BlocksStored(a, 0.0, (1, 2), None, b"", SPEC, keys=(1, 2)))
        ledger.apply(ev.BlocksRemoved(a, 0.0, (1, 2)))
        ledger.apply(ev.BlocksStored(a, 0.0, (1, 2), None, b"", SPEC, keys=(1, 2)))
        ledger.apply(ev.WorkerLeft(a, 1.0, "scaled down"))
        assert self.outlook(ledger).evictions_seen > 0.0
        ledger.apply(ev.WorkerLeft(b, 1.0, "scaled down"))
        spec = WorkerSpec(worker_id("d"), "http://d", "vllm", ("m",), kv_capacity_tokens=160, block_size_tokens=16)
        ledger.apply(ev.WorkerJoined(spec, 2.0))
        assert self.outlook(ledger).evictions_seen == 0.0
