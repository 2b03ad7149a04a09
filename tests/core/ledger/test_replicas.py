from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.ledger import events as ev
from pointsman.core.ledger.ledger import Ledger
from pointsman.core.ledger.outbox import MOST_KEYS, MOST_KEYS_A_PROMPT, Outbox
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.replica import PromptTold, ReplicaNews, WorkerShare
from pointsman.core.model.request import Request
from pointsman.core.model.slo import Slo
from pointsman.core.model.token_keys import KeySpec
from pointsman.core.model.view import Column, Exclusion
from pointsman.core.model.worker import WorkerSpec, worker_id

A, B = worker_id("a"), worker_id("b")
TEXT = b"0123456789abcdef" * 8
SPEC = KeySpec(16)


def told(ledger: Ledger, replica: str = "r1", at_ms: float = 0.0, **news: object) -> None:
    ledger.apply(ev.ReplicaTold(replica, at_ms, ReplicaNews(**news)))  # type: ignore[arg-type]


def has(ledger: Ledger, replica: str = "r1", whole: bool = False, at_ms: float = 0.0, **sequences: int) -> None:
    shares = {worker_id(w): WorkerShare(requests=n, sequences=n, kv_tokens=10 * n) for w, n in sequences.items()}
    told(ledger, replica, at_ms, shares=shares, whole=whole)


def column(ledger: Ledger, request: Request, name: Column) -> list[int]:
    view = ledger.view(request)
    return [int(n) for n in view.column(name)]


class TestLoad:
    def test_adds_to_our_own_and_is_shown_apart(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        ledger.apply(ev.Admitted(make_request("own"), 0))
        ledger.apply(ev.Dispatched("own", A, 0))
        has(ledger, a=3)
        has(ledger, "r2", a=1, b=2)
        assert column(ledger, make_request(), Column.RUNNING) == [5, 2]
        a, b = ledger.snapshot().workers
        assert (a.running, a.sequences, a.others.requests, a.others.sequences) == (1, 1, 4, 4)
        assert (b.running, b.sequences, b.others.requests) == (0, 0, 2)
        assert (a.kv_tokens, a.others.kv_tokens) == (0, 40)
        assert ledger.snapshot().others == {"r1": 3, "r2": 3}

    def test_what_is_told_last_holds_however_often_it_is_told(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        for count in (3, 3, 7, 2, 2):
            has(ledger, a=count)
        assert column(ledger, make_request(), Column.RUNNING) == [2, 0]

    def test_what_a_whole_state_does_not_name_is_nothing(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        has(ledger, a=3, b=4)
        has(ledger, whole=True, b=1)
        assert column(ledger, make_request(), Column.RUNNING) == [0, 1]

    def test_gone_frees_exactly_what_it_held(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        has(ledger, "r1", a=3)
        has(ledger, "r2", a=1, b=2)
        ledger.apply(ev.ReplicaGone("r1", 1))
        ledger.apply(ev.ReplicaGone("never heard of", 1))
        assert column(ledger, make_request(), Column.RUNNING) == [1, 2]
        ledger.apply(ev.ReplicaGone("r2", 1))
        assert column(ledger, make_request(), Column.RUNNING) == [0, 0]
        assert ledger.snapshot().others == {}

    def test_of_a_worker_that_is_not_known_yet_counts_once_it_is(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        has(ledger, a=1, b=4)
        ledger.apply(ev.WorkerJoined(WorkerSpec(B, "http://b", "vllm", ("m",)), 1))
        assert column(ledger, make_request(), Column.RUNNING) == [1, 4]
        has(ledger, a=0, b=0)
        assert column(ledger, make_request(), Column.RUNNING) == [0, 0]

    def test_a_worker_that_left_with_requests_of_ours_and_came_back(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Admitted(make_request("own"), 0))
        ledger.apply(ev.Dispatched("own", A, 0))
        has(ledger, a=2)
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 1))
        assert column(ledger, make_request(), Column.RUNNING) == [2]
        ledger.apply(ev.Cancelled("own", 2))
        assert column(ledger, make_request(), Column.RUNNING) == [2]
        has(ledger, a=0)
        assert column(ledger, make_request(), Column.RUNNING) == [0]

    def test_counts_for_the_cap(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", max_in_flight=3)
        has(ledger, a=2)
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.NONE]
        has(ledger, a=3)
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.AT_CAP]

    def test_moves_the_engines_queue_until_the_next_reading(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", queue_depth_threshold=6)
        ledger.apply(ev.MetricsRead(A, 0, running=4, waiting=3))
        has(ledger, a=3)
        assert column(ledger, make_request(), Column.QUEUED) == [6]
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.QUEUE_FULL]
        has(ledger, a=0)
        assert column(ledger, make_request(), Column.QUEUED) == [3]

    def test_promises_come_over_to_our_clock(self, make_ledger, make_request) -> None:
        theirs, ours = make_ledger("a"), make_ledger("a")
        theirs.tell_others(lambda: None)
        request = make_request("r", slo=Slo(500.0, 20.0), arrival_ms=1_000_000.0)
        theirs.apply(ev.Admitted(request, 1_000_000))
        theirs.apply(ev.Dispatched("r", A, 1_000_000))
        ours.apply(ev.ReplicaTold("r1", 77.0, theirs.news(1_000_100.0)))
        assert column(ours, request, Column.SLO_DUE_MS) == [77 + 400]
        theirs.apply(ev.FirstToken("r", 1_000_200))
        ours.apply(ev.ReplicaTold("r1", 177.0, theirs.news(1_000_200.0)))
        assert column(ours, request, Column.SLO_DUE_MS) == [0]
        assert column(ours, request, Column.SLO_TPOT_US) == [20_000]


class TestForeign:
    """The engine's own count holds the others' requests, too: they must not count twice."""

    def test_what_others_have_is_not_foreign(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        has(ledger, a=4)
        for at_ms in (0, 1):
            ledger.apply(ev.MetricsRead(A, at_ms, running=5, waiting=0))
        view = ledger.view(make_request())
        assert (view.column(Column.RUNNING)[0], view.column(Column.FOREIGN)[0], view.load[0]) == (4, 1, 5)

    def test_what_was_foreign_until_a_replica_told_of_it(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        for at_ms in (0, 1):
            ledger.apply(ev.MetricsRead(A, at_ms, running=5, waiting=0))
        has(ledger, a=0)  # the first word may come before the whole state
        has(ledger, a=3)
        has(ledger, whole=True, a=4)
        assert ledger.view(make_request()).load[0] == 5
        ledger.apply(ev.MetricsRead(A, 2, running=5, waiting=0))
        assert ledger.view(make_request()).load[0] == 5
        # What it sends from now on is new.
        has(ledger, a=6)
        assert ledger.view(make_request()).load[0] == 7

    def test_and_after_something_was_lost(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        has(ledger, whole=True, a=1)
        for at_ms in (0, 1):
            ledger.apply(ev.MetricsRead(A, at_ms, running=5, waiting=0))
        has(ledger, whole=True, a=4)
        assert column(ledger, make_request(), Column.FOREIGN) == [1]
        assert ledger.view(make_request()).load[0] == 5

    def test_step_times_are_learned_knowing_of_the_others(self, make_request, monkeypatch) -> None:
        ledger = Ledger(text_block_bytes=16, step_priors={})
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 0))
        has(ledger, a=4)
        seen = {}
        monkeypatch.setattr(
            ledger._times, "ticked", lambda entries, not_ours, at_ms: seen.update({e.id: not_ours(e) for e in entries})
        )
        ledger.apply(ev.Tick(1))
        assert seen == {A: 4}


class TestPrompts:
    def test_a_prompt_of_another_counts_as_held_where_it_went(self, make_ledger, make_request) -> None:
        theirs, ours = make_ledger("a", "b"), make_ledger("a", "b")
        theirs.tell_others(lambda: None)
        request = make_request("r", TEXT)
        theirs.apply(ev.Admitted(request, 0))
        theirs.apply(ev.Dispatched("r", B, 0))
        ours.apply(ev.ReplicaTold("r1", 5.0, theirs.news(0)))
        assert column(ours, request, Column.CACHED_TOKENS) == column(theirs, request, Column.CACHED_TOKENS)
        assert column(ours, request, Column.CACHED_TOKENS)[1] > 0
        assert column(ours, request, Column.HELD_TOKENS) == column(theirs, request, Column.HELD_TOKENS)

    def test_one_that_did_not_arrive_is_taken_back_but_for_what_ours_share(self, make_ledger, make_request) -> None:
        theirs, ours = make_ledger("a"), make_ledger("a")
        theirs.tell_others(lambda: None)
        request, shorter = make_request("r", TEXT), make_request("short", TEXT[:64])
        theirs.apply(ev.Admitted(request, 0))
        theirs.apply(ev.Dispatched("r", A, 0))
        ours.apply(ev.ReplicaTold("r1", 0, theirs.news(0)))
        ours.apply(ev.Admitted(shorter, 0))
        ours.apply(ev.Dispatched("short", A, 0))
        theirs.apply(ev.Cancelled("r", 1))
        ours.apply(ev.ReplicaTold("r1", 1, theirs.news(1)))
        assert ours.snapshot().workers[0].text_blocks == 4
        assert theirs.snapshot().workers[0].text_blocks == 0

    def test_token_keys_of_another_way_to_cut_are_left_alone(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", block_size_tokens=16)
        keys = tuple(range(1, 5))
        request = make_request("r", prompt_tokens=64, token_blocks={SPEC: BlockKeys(keys, 16, BlockUnit.TOKENS, 64)})
        told(ledger, prompts=[PromptTold(A, "m", (), keys, KeySpec(32))])
        assert column(ledger, request, Column.CACHED_TOKENS) == [0]
        told(ledger, prompts=[PromptTold(A, "m", (), keys, SPEC)])
        assert column(ledger, request, Column.CACHED_TOKENS) == [48]

    def test_of_a_worker_that_is_not_known_is_ignored(self, make_ledger) -> None:
        ledger = make_ledger("a")
        told(ledger, prompts=[PromptTold(B, "m", (1, 2)), PromptTold(B, "m", (1, 2), taken_back=True)])
        assert ledger.snapshot().text_blocks == 0

    def test_an_adapter_that_another_asked_for_is_there(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", models=("m", "lora"), adapters=("lora",))
        request = make_request("r", model="lora")
        assert column(ledger, request, Column.ADAPTER_MISSING) == [1]
        told(ledger, prompts=[PromptTold(A, "lora", (1,))])
        assert column(ledger, request, Column.ADAPTER_MISSING) == [0]

    def test_arrivals_at_others_count(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        told(ledger, arrivals={"m": 3, "unknown": 9})
        ledger.apply(ev.Admitted(make_request("own"), 0))
        assert ledger.view(make_request()).outlook.arrivals_per_s == 4 / 30


class TestNews:
    def test_nothing_is_kept_while_nobody_is_to_be_told(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.apply(ev.Admitted(make_request("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        assert not ledger.news(0)

    def test_it_wakes_once_until_it_is_fetched(self, make_ledger, make_request) -> None:
        ledger, woken = make_ledger("a", "b"), []
        ledger.tell_others(lambda: woken.append(1))
        for number in range(3):
            ledger.apply(ev.Admitted(make_request(f"r{number}"), 0))
            ledger.apply(ev.Dispatched(f"r{number}", A, 0))
        assert woken == [1]
        news = ledger.news(0)
        assert news.shares == {A: WorkerShare(requests=3, sequences=3, waiting_first=3, remaining_tokens=771)}
        assert news.arrivals == {"m": 3}
        assert not ledger.news(0)
        ledger.apply(ev.Cancelled("r0", 0))
        assert woken == [1, 1]

    def test_what_others_have_is_never_told_as_ours(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b")
        ledger.tell_others(lambda: None)
        has(ledger, a=5, b=5)
        ledger.apply(ev.Admitted(make_request("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        assert [share.sequences for share in ledger.news(0).shares.values()] == [1]
        assert {w: s.sequences for w, s in ledger.whole_news(0).shares.items()} == {A: 1}
        assert ledger.whole_news(0).whole

    def test_of_a_worker_that_left_nothing_is_left(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.tell_others(lambda: None)
        ledger.apply(ev.Admitted(make_request("r"), 0))
        ledger.apply(ev.Dispatched("r", A, 0))
        ledger.apply(ev.WorkerLeft(A, 1, "test"))
        assert ledger.news(1).shares == {A: WorkerShare()}

    @pytest.mark.parametrize("comes_back", [True, False])
    def test_what_was_at_a_worker_that_is_gone_is_free_at_once_for_others(
        self, make_ledger, make_request, comes_back
    ) -> None:
        """Not only when our request, which may hang, has ended."""
        theirs, ours, woken = make_ledger("a"), make_ledger("a"), []
        theirs.tell_others(lambda: woken.append(1))
        theirs.apply(ev.Admitted(make_request("r"), 0))
        theirs.apply(ev.Dispatched("r", A, 0))
        ours.apply(ev.ReplicaTold("r1", 0.0, theirs.news(0)))
        assert column(ours, make_request(), Column.RUNNING) == [1]
        joined = ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 1)
        theirs.apply(joined if comes_back else ev.WorkerLeft(A, 1, "test"))
        assert woken == [1, 1]
        ours.apply(ev.ReplicaTold("r1", 1.0, theirs.news(1)))
        assert column(ours, make_request(), Column.RUNNING) == [0]

    def test_text_is_not_told_where_everybody_hears_the_worker_itself(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", block_size_tokens=16, kv_capacity_tokens=1600)
        ledger.tell_others(lambda: None)
        ledger.apply(ev.KvFeedChanged(A, 0, ev.KvFeedState.COMPLETE, ""))
        keys = tuple(range(1, 9))
        ledger.apply(ev.BlocksStored(A, 0, (1, 2), None, b"", SPEC, keys=keys[:2]))
        blocks = {SPEC: BlockKeys(keys, 16, BlockUnit.TOKENS, 128)}
        ledger.apply(ev.Admitted(make_request("r", TEXT, prompt_tokens=128, token_blocks=blocks), 0))
        ledger.apply(ev.Dispatched("r", A, 0, cached_tokens=32, exact=True))
        (prompt,) = ledger.news(0).prompts
        assert (prompt.text_keys, prompt.token_keys, prompt.spec) == ((), keys[2:], SPEC)


class TestExpected:
    """What others are probably doing at this moment, seeing the same."""

    def dispatch(self, ledger: Ledger, request: Request) -> None:
        ledger.apply(ev.Admitted(request, 0))
        ledger.apply(ev.Dispatched(request.id, A, 0))

    def test_each_of_ours_counts_for_one_of_each_of_them_until_they_are_heard(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.tell_others(lambda: None)
        has(ledger, "r1")
        has(ledger, "r2")
        self.dispatch(ledger, make_request("one", prompt_tokens=100))
        assert column(ledger, make_request(), Column.RUNNING) == [3]
        assert column(ledger, make_request(), Column.PREFILL_TOKENS) == [300]
        (shown,) = ledger.snapshot().workers
        assert (shown.sequences, shown.prefill_tokens, shown.others) == (1, 100, WorkerShare())
        assert ledger.news(0).shares[A].sequences == 1
        self.dispatch(ledger, make_request("two", prompt_tokens=100))
        assert column(ledger, make_request(), Column.RUNNING) == [6]
        ledger.heard_news()
        assert column(ledger, make_request(), Column.RUNNING) == [4]
        ledger.news(0)
        ledger.heard_news()
        ledger.heard_news()
        assert column(ledger, make_request(), Column.RUNNING) == [2]
        assert ledger.snapshot().workers[0].others == WorkerShare()

    def test_nothing_is_expected_where_nobody_is(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a")
        ledger.tell_others(lambda: None)
        has(ledger, "r1")
        ledger.apply(ev.ReplicaGone("r1", 0))
        self.dispatch(ledger, make_request("one"))
        assert column(ledger, make_request(), Column.RUNNING) == [1]

    def test_a_worker_that_left_meanwhile(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", max_in_flight=2)
        ledger.tell_others(lambda: None)
        has(ledger, "r1")
        self.dispatch(ledger, make_request("one"))
        ledger.apply(ev.WorkerJoined(WorkerSpec(A, "http://a", "vllm", ("m",)), 1))
        ledger.news(0)
        ledger.heard_news()
        assert column(ledger, make_request(), Column.RUNNING) == [0]

    def test_nobody_is_turned_away_by_a_guess(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", max_in_flight=2, queue_depth_threshold=3)
        ledger.tell_others(lambda: None)
        ledger.apply(ev.MetricsRead(A, 0, running=0, waiting=1))
        has(ledger, "r1")
        has(ledger, "r2")
        self.dispatch(ledger, make_request("one"))
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.NONE]
        self.dispatch(ledger, make_request("two"))
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.QUEUE_FULL]  # 1 + 2 of ours
        ledger.apply(ev.MetricsRead(A, 0, running=2, waiting=0))
        assert column(ledger, make_request(), Column.EXCLUSION) == [Exclusion.AT_CAP]


class TestBounds:
    def test_of_a_long_prompt_the_beginning_is_told(self, make_request) -> None:
        outbox = Outbox(lambda: None)
        keys = tuple(range(MOST_KEYS_A_PROMPT + 5))
        request = make_request("r", blocks=BlockKeys(keys, 16, BlockUnit.BYTES, 16 * len(keys)))
        outbox.sent(A, request, (), None, by_text=True)
        (_, (prompt,), _) = outbox.take()
        assert prompt.text_keys == keys[:MOST_KEYS_A_PROMPT]

    def test_too_many_are_counted_and_room_comes_back(self, make_request) -> None:
        outbox = Outbox(lambda: None)
        keys = tuple(range(MOST_KEYS_A_PROMPT))
        request = make_request("r", blocks=BlockKeys(keys, 16, BlockUnit.BYTES, 16 * len(keys)))
        for _ in range(MOST_KEYS // MOST_KEYS_A_PROMPT + 2):
            outbox.sent(A, request, (), None, by_text=True)
        assert outbox.prompts_not_told == 2
        outbox.take()
        outbox.sent(A, request, (), None, by_text=True)
        assert outbox.prompts_not_told == 2


def test_columns_of_shares_are_those_of_the_table(make_ledger, make_request) -> None:
    """Each number arrives in the column that it came from."""
    theirs, ours = make_ledger("a"), make_ledger("a")
    theirs.tell_others(lambda: None)
    for number, slo in enumerate((None, Slo(500.0, 20.0), Slo(700.0, 30.0))):
        request = make_request(f"r{number}", prompt_tokens=100 + number, slo=slo, sequences=2)
        theirs.apply(ev.Admitted(request, 0))
        theirs.apply(ev.Dispatched(request.id, A, 0, cached_tokens=7))
    theirs.apply(ev.FirstToken("r1", 0))
    theirs.apply(ev.Progress("r1", 0, 12))
    ours.apply(ev.ReplicaTold("r1", 0.0, theirs.news(0.0)))
    same = [c for c in Column if c not in (Column.LAST_DISPATCH,)]
    assert np.array_equal(ours.view(make_request()).table[same], theirs.view(make_request()).table[same])
