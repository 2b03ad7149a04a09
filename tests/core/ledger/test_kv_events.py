"""KV events in the ledger: what counts as cached, and when an engine's word is relied on."""

from __future__ import annotations

import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.events import KvFeedState
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.model.blocks import text_block_keys
from pointsman.core.model.public_hash import public_seed, sequence_hashes
from pointsman.core.model.request import Request
from pointsman.core.model.token_keys import GPU, KeySpec, pack_tokens, salt_extra, token_block_keys
from pointsman.core.model.view import Column
from pointsman.core.model.worker import WorkerId, WorkerSpec, worker_id

A, B = worker_id("a"), worker_id("b")
SPEC = KeySpec(4)
TEXT = b"0123456789abcdef" * 8
NUMBERS = {A: 0, B: 1000}


def asks(request_id: str = "r", tokens: int = 33, first: int = 0, **fields: object) -> Request:
    """A tokenized request with text keys beside."""
    packed = pack_tokens(range(first, first + tokens))
    extras = {0: salt_extra(str(fields.pop("salt")))} if "salt" in fields else {}
    blocks = token_block_keys(packed, SPEC, extras=extras)
    return Request(request_id, "m", 0.0, tokens, text_block_keys(TEXT, 16, 0), {SPEC: blocks}, **fields)  # type: ignore[arg-type]


def stored(
    worker: WorkerId, blocks: int, *, first: int = 0, parent: int | None = None, **fields: object
) -> ev.BlocksStored:
    tokens = pack_tokens(range(first, first + 4 * blocks))
    begin = 0 if parent is None else parent + 1
    return ev.BlocksStored(worker, 0.0, tuple(range(begin, begin + blocks)), parent, tokens, SPEC, **fields)  # type: ignore[arg-type]


def complete(ledger: Ledger, *workers: WorkerId) -> None:
    for worker in workers:
        ledger.apply(ev.KvFeedChanged(worker, 0.0, KvFeedState.COMPLETE, "replayed from the start"))


def cached(ledger: Ledger, request: Request) -> list[int]:
    return ledger.view(request).column(Column.CACHED_TOKENS).tolist()


def exact(ledger: Ledger, request: Request) -> list[int]:
    return ledger.view(request).column(Column.EXACT).tolist()


class TestExact:
    def test_is_what_the_engines_say_and_not_what_was_sent(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, A, B)
        ledger.apply(stored(A, 3))
        ledger.apply(stored(B, 1))
        assert cached(ledger, asks()) == [12, 4]
        assert exact(ledger, asks()) == [1, 1]
        ledger.apply(ev.BlocksRemoved(A, 1.0, (1,)))
        assert cached(ledger, asks()) == [4, 4]
        ledger.apply(ev.BlocksCleared(A, 2.0))
        assert cached(ledger, asks()) == [0, 4]

    def test_blocks_of_modelled_engines_come_with_their_keys(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, A, B)
        keys = asks().token_blocks[SPEC].keys
        ledger.apply(ev.BlocksStored(A, 0.0, keys[:2], None, b"", SPEC, keys=keys[:2]))
        ledger.apply(ev.BlocksStored(A, 0.0, keys[2:3], None, b"", SPEC, keys=keys[2:3]))
        ledger.apply(stored(B, 2))
        assert cached(ledger, asks()) == [12, 8]
        ledger.apply(ev.BlocksRemoved(A, 1.0, keys[1:2]))
        assert cached(ledger, asks()) == [4, 8]

    def test_blocks_go_on_from_their_parent(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(stored(A, 2))
        ledger.apply(stored(A, 2, first=8, parent=1))
        assert cached(ledger, asks()) == [16]

    def test_the_last_token_is_always_computed(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(stored(A, 8))
        assert cached(ledger, asks(tokens=32)) == [28]
        assert cached(ledger, asks(tokens=33)) == [32]

    def test_what_was_just_sent_counts_at_once_and_removals_correct_it(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, A, B)
        ledger.apply(ev.Admitted(asks("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        assert cached(ledger, asks("s")) == [32, 0]
        ledger.apply(stored(A, 8))
        ledger.apply(ev.BlocksRemoved(A, 1.0, tuple(range(2, 8))))
        assert cached(ledger, asks("s")) == [8, 0]

    def test_what_was_sent_and_failed_does_not_count(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(ev.Admitted(asks("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        ledger.apply(ev.Failed("r", 1, "broke"))
        assert cached(ledger, asks("s")) == [0]

    def test_a_cancelled_sibling_takes_nothing_from_those_that_run(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        for name, tokens in (("one", 33), ("two", 21), ("three", 29)):
            ledger.apply(ev.Admitted(asks(name, tokens), 0))
            ledger.apply(ev.Dispatched(name, A, 0))
        ledger.apply(ev.Cancelled("one", 1))
        assert cached(ledger, asks("s")) == [28]
        ledger.apply(ev.Cancelled("three", 1))
        assert cached(ledger, asks("s")) == [20]
        ledger.apply(ev.Cancelled("two", 1))
        assert cached(ledger, asks("s")) == [0]

    def test_what_no_event_confirmed_is_forgotten_after_a_while(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(ev.Admitted(asks("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        ledger.apply(ev.Tick(60_001))
        assert cached(ledger, asks("s")) == [0]

    def test_other_salts_and_adapters_share_nothing(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(stored(A, 3, extras={0: salt_extra("one")}))
        assert cached(ledger, asks(salt="one")) == [12]
        assert cached(ledger, asks(salt="two")) == [0]
        assert cached(ledger, asks()) == [0]
        ledger.apply(stored(A, 3, lora_name="adapter"))
        assert cached(ledger, asks()) == [0]

    def test_tiers_below_the_gpu_are_counted_apart(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(stored(A, 2))
        ledger.apply(stored(A, 3, first=8, parent=1, medium="cpu"))
        view = ledger.view(asks())
        assert view.column(Column.CACHED_TOKENS).tolist() == [8]
        assert view.column(Column.OFFLOADED_TOKENS).tolist() == [12]
        ledger.apply(ev.BlocksRemoved(A, 1.0, (0, 1), GPU))
        assert ledger.view(asks()).column(Column.OFFLOADED_TOKENS).tolist() == [0]

    def test_a_worker_that_left_or_is_unreachable_holds_nothing(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, A, B)
        ledger.apply(stored(A, 3))
        ledger.apply(stored(B, 3))
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",), block_size_tokens=4), 1))
        for at_ms in (20_000, 25_000):
            ledger.apply(ev.HealthRead(B, at_ms, False, False, "gone"))
        assert sorted(cached(ledger, asks())) == [0, 0]
        assert ledger.snapshot().exact_blocks == 0


class TestConfidence:
    def test_without_events_the_approximate_view_is_used(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        ledger.apply(ev.Admitted(asks("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        assert exact(ledger, asks("s")) == [0, 0]
        assert cached(ledger, asks("s")) == [32, 0]

    def test_a_request_that_was_not_tokenized_is_looked_up_by_its_text(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(ev.Admitted(make_request("r", TEXT), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        assert exact(ledger, make_request("s", TEXT)) == [0]
        assert cached(ledger, make_request("s", TEXT)) == [len(TEXT) // 4 - 1]

    def test_an_orphan_is_not_believed_and_costs_its_share_of_confidence(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4)
        complete(ledger, A)
        ledger.apply(stored(A, 2, parent=77))
        assert cached(ledger, asks()) == [0]
        kv = ledger.snapshot().workers[0].kv
        assert (kv.orphan_blocks, kv.confidence, exact(ledger, asks())) == (2, 0.0, [0])
        ledger.apply(stored(A, 98))
        assert ledger.snapshot().workers[0].kv.confidence == pytest.approx(0.9)
        assert (exact(ledger, asks()), cached(ledger, asks())) == ([1], [32])

    def test_a_partial_view_heals_as_the_cache_turns_over(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4, kv_capacity_tokens=40)
        ledger.apply(ev.KvFeedChanged(A, 0.0, KvFeedState.PARTIAL, "history lost"))
        ledger.apply(stored(A, 4))
        assert (ledger.snapshot().workers[0].kv.confidence, exact(ledger, asks())) == (0.4, [0])
        ledger.apply(stored(A, 1, first=900))
        assert exact(ledger, asks()) == [1]

    @pytest.mark.parametrize(
        "doubt",
        [
            ev.KvFeedChanged(A, 1.0, KvFeedState.SYNCING, "test"),
            ev.KvFeedChanged(A, 1.0, KvFeedState.OFF, "test"),
            ev.KvFeedChanged(A, 1.0, KvFeedState.PARTIAL, "test"),
            ev.KvChecked(A, 1.0, "its tokenizer differs"),
        ],
    )
    def test_a_word_that_is_not_relied_on_steers_nobody(self, make_ledger, doubt: ev.KvEvent) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, A, B)
        ledger.apply(stored(A, 3))
        ledger.apply(stored(A, 2, first=12, parent=2, medium="cpu"))
        ledger.apply(doubt)
        assert exact(ledger, asks()) == [0, 1]
        assert cached(ledger, asks()) == [0, 0]
        assert ledger.view(asks()).column(Column.OFFLOADED_TOKENS).tolist() == [0, 0]
        keys = asks().token_blocks[SPEC].keys
        assert ledger.held("m", SPEC, keys, believed=True) == {}

    def test_what_is_on_its_way_counts_there_too(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=4)
        complete(ledger, B)
        ledger.apply(stored(A, 3))
        ledger.apply(ev.Admitted(asks("r", tokens=17), 0))
        ledger.apply(ev.Dispatched("r", A, 0, cached_tokens=8))
        assert cached(ledger, Request("s", "m", 0.0, 33, token_blocks=asks().token_blocks)) == [16, 0]

    def test_a_partial_view_goes_on_healing_when_a_gap_is_filled(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4, kv_capacity_tokens=40)
        ledger.apply(ev.KvFeedChanged(A, 0.0, KvFeedState.PARTIAL, "history lost"))
        ledger.apply(stored(A, 10))
        for state in (KvFeedState.SYNCING, KvFeedState.PARTIAL):
            ledger.apply(ev.KvFeedChanged(A, 1.0, state, "test"))
        assert ledger.snapshot().workers[0].kv.confidence == 1.0
        ledger.apply(ev.BlocksCleared(A, 2.0))
        assert ledger.snapshot().workers[0].kv.confidence == 0.0

    def test_losing_history_after_being_complete_begins_anew(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4, kv_capacity_tokens=40)
        complete(ledger, A)
        ledger.apply(stored(A, 10))
        ledger.apply(ev.KvFeedChanged(A, 1.0, KvFeedState.PARTIAL, "an unknown event"))
        assert ledger.snapshot().workers[0].kv.confidence == 0.0

    def test_a_worker_that_announces_more_than_fits_is_begun_anew(self, make_ledger) -> None:
        ledger = make_ledger("a", block_size_tokens=4, kv_capacity_tokens=40)
        complete(ledger, A)
        ledger.apply(stored(A, 21))
        kv = ledger.snapshot().workers[0].kv
        assert (kv.state, kv.blocks) == (KvFeedState.PARTIAL, {})
        assert "21" not in kv.reason
        assert "10 blocks" in kv.reason


class TestKeySpecs:
    def test_are_learned_from_the_engine_and_corrected_by_events(self, make_ledger) -> None:
        ledger = make_ledger("a", "b", block_size_tokens=16)
        assert ledger.key_specs("m") == frozenset()
        complete(ledger, A, B)
        assert ledger.key_specs("m") == {KeySpec(16)}
        ledger.apply(stored(A, 1))
        assert ledger.key_specs("m") == {KeySpec(16), SPEC}

    def test_workers_that_cut_otherwise_are_matched_by_their_own_keys(self, make_ledger) -> None:
        ledger = make_ledger("a", "b")
        complete(ledger, A, B)
        eight = KeySpec(8)
        packed = pack_tokens(range(33))
        ledger.apply(stored(A, 3))
        ledger.apply(ev.BlocksStored(B, 0.0, (0, 1), None, pack_tokens(range(16)), eight))
        keys = {spec: token_block_keys(packed, spec) for spec in (SPEC, eight)}
        assert cached(ledger, Request("r", "m", 0.0, 33, token_blocks=keys)) == [12, 16]


class TestWhoHoldsWhat:
    def test_by_keys_and_by_public_hashes_up_to_each_tier(self) -> None:
        ledger = Ledger(index_by_hash=True)
        for worker in (A, B):
            ledger.apply(ev.WorkerJoined(WorkerSpec(worker, "http://x", "vllm", ("m",), block_size_tokens=4), 0.0))
        complete(ledger, A, B)
        ledger.apply(stored(A, 2))
        ledger.apply(stored(A, 2, first=8, parent=1, medium="cpu"))
        ledger.apply(stored(B, 1))
        packed = pack_tokens(range(33))
        wanted = {A: {"gpu": 8, "cpu": 16}, B: {"gpu": 4, "cpu": 4}}
        assert ledger.held("m", SPEC, token_block_keys(packed, SPEC).keys) == wanted
        hashes = sequence_hashes(packed, SPEC, public_seed())
        assert ledger.held_by_hash("m", SPEC, hashes) == wanted
        assert ledger.held_by_hash("m", KeySpec(8), hashes) == {}
        assert ledger.held("other", SPEC, token_block_keys(packed, SPEC).keys) == {}

    def test_salted_blocks_have_no_public_hash(self) -> None:
        ledger = Ledger(index_by_hash=True)
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://x", "vllm", ("m",), block_size_tokens=4), 0.0))
        ledger.apply(stored(A, 1, extras={0: salt_extra("secret")}))
        ledger.apply(stored(A, 1, first=4, parent=0))
        assert ledger.held_by_hash("m", SPEC, sequence_hashes(pack_tokens(range(33)), SPEC, public_seed())) == {}

    def test_hashes_are_not_kept_unless_asked_for(self, make_ledger) -> None:
        assert make_ledger("a").held_by_hash("m", SPEC, [1]) is None

    def test_what_nobody_holds_any_more_is_let_go(self) -> None:
        ledger = Ledger(index_by_hash=True)
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://x", "vllm", ("m",), block_size_tokens=4), 0.0))
        for i in range(300):
            ledger.apply(stored(A, 50, first=200 * i))
            ledger.apply(ev.BlocksCleared(A, 0.0))
            ledger.apply(ev.Tick(0.0))
        assert len(ledger._fleet.caches._public) <= 4096 + 100


def test_a_fault_found_by_a_check_takes_the_confidence_until_a_check_finds_none(make_ledger) -> None:
    ledger = make_ledger("a", block_size_tokens=4)
    complete(ledger, A)
    ledger.apply(stored(A, 3))
    ledger.apply(ev.KvChecked(A, 1.0, "its tokenizer differs"))
    kv = ledger.snapshot().workers[0].kv
    assert (kv.confidence, kv.reason) == (0.0, "its tokenizer differs")
    assert exact(ledger, asks()) == [0]
    complete(ledger, A)
    assert exact(ledger, asks()) == [0], "a feed that is complete says nothing about tokens"
    ledger.apply(ev.KvChecked(A, 2.0, None))
    assert exact(ledger, asks()) == [1]


def test_odd_blocks_beside_the_usual_ones_do_not_change_how_prompts_are_cut(make_ledger) -> None:
    ledger = make_ledger("a", block_size_tokens=4)
    complete(ledger, A)
    ledger.apply(stored(A, 4))
    ledger.apply(ev.BlocksStored(A, 0.0, (900,), None, pack_tokens(range(2)), KeySpec(2)))
    assert ledger.key_specs("m") == {SPEC}
    assert cached(ledger, asks()) == [16]
