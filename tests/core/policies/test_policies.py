from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.ledger import events as ev
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Reject
from pointsman.core.model.request import Request
from pointsman.core.model.view import Column, Exclusion, FleetView
from pointsman.core.model.worker import WorkerSpec, worker_id
from pointsman.core.policies.kv import NOT_EXACT
from pointsman.core.policies.load_price import LOAD_TOKENS
from pointsman.core.policies.policy import NO_TIMING
from pointsman.core.policies.registry import PolicyRegistry

REGISTRY = PolicyRegistry()
NAMES = REGISTRY.names()
REQUEST = Request("r", "m", 0.0, 100)
LONG = Request("r", "m", 0.0, 1000)


def decide(name: str, view: FleetView, request: Request = REQUEST, seed: int = 0):
    return REGISTRY.get(name).decide(request, view, NO_TIMING, 0.0, random.Random(seed))


def drive(name: str, ledger, requests, rng=None) -> list[str]:
    """Decide and dispatch one after the other, as the front end does; nothing finishes."""
    rng = rng or random.Random(0)
    chosen = []
    for request in requests:
        ledger.apply(ev.Admitted(request, 0))
        view = ledger.view(request)
        worker = REGISTRY.get(name).decide(request, view, NO_TIMING, 0.0, rng).worker
        ledger.apply(ev.Dispatched(request.id, worker, 0))
        chosen.append(worker)
    return chosen


@pytest.mark.parametrize("name", NAMES)
class TestAll:
    @given(data=st.data())
    @settings(max_examples=60, deadline=None)
    def test_chooses_an_eligible_worker_or_rejects_and_lists_every_candidate(
        self, name: str, data: st.DataObject
    ) -> None:
        n = data.draw(st.integers(1, 6))
        numbers = st.lists(st.integers(0, 50), min_size=n, max_size=n)
        excluded = data.draw(st.lists(st.sampled_from([0, 0, int(Exclusion.DRAINING)]), min_size=n, max_size=n))
        view = FleetView.of(
            [f"w{i}/0" for i in range(n)],
            exclusion=excluded,
            running=data.draw(numbers),
            foreign=data.draw(numbers),
            cached_tokens=data.draw(numbers),
            last_dispatch=data.draw(numbers),
        )
        request = Request("r", "m", 0.0, 100, route_key=data.draw(st.none() | st.text(max_size=5)))
        decision = decide(name, view, request)
        if all(excluded):
            assert isinstance(decision.plan, Reject)
        else:
            assert excluded[decision.chosen_row] == 0
        candidates = decision.candidates()
        assert {c.worker for c in candidates} == set(view.workers)
        assert [c.excluded for c in candidates if c.excluded] == ["draining"] * sum(map(bool, excluded))

    def test_decides_the_same_on_the_same_view_and_seed(self, name: str) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0"], running=[1, 1, 1])
        first = [decide(name, view, seed=s).worker for s in range(20)]
        assert first == [decide(name, view, seed=s).worker for s in range(20)]

    def test_an_empty_fleet_is_a_rejection(self, name: str) -> None:
        assert isinstance(decide(name, FleetView.of([])).plan, Reject)


def test_random_gives_everybody_the_same_share() -> None:
    view = FleetView.of(["a/0", "b/0", "c/0"], running=[9, 0, 0])
    rng = random.Random(1)
    counts = Counter(REGISTRY.get("random").decide(REQUEST, view, NO_TIMING, 0.0, rng).worker for _ in range(3000))
    assert all(900 < count < 1100 for count in counts.values())


class TestRoundRobin:
    def test_takes_turns_even_when_members_change(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b", "c")
        assert drive("round_robin", ledger, [make_request(f"1{i}") for i in range(6)]) == ["a/0", "b/0", "c/0"] * 2
        ledger.apply(ev.HealthRead(worker_id("b"), 0, True, False, "503"))
        assert drive("round_robin", ledger, [make_request(f"2{i}") for i in range(4)]) == ["a/0", "c/0"] * 2
        ledger.apply(ev.HealthRead(worker_id("b"), 0, True, True, "ok"))
        assert drive("round_robin", ledger, [make_request(f"3{i}") for i in range(6)]) == ["b/0", "a/0", "c/0"] * 2

    def test_a_retry_does_not_shift_the_turn_of_others(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b", "c")
        request = make_request("r")
        drive("round_robin", ledger, [request])
        ledger.apply(ev.AttemptFailed("r", 0, "refused"))
        view = ledger.view(request, tried={worker_id("a")})
        assert decide("round_robin", view, request).worker == "b/0"


class TestLeastLoaded:
    def test_counts_own_and_foreign_requests(self) -> None:
        assert decide("least_loaded", FleetView.of(["a/0", "b/0"], running=[1, 2], foreign=[5, 0])).worker == "b/0"

    def test_ties_go_to_anybody(self) -> None:
        view = FleetView.of(["a/0", "b/0"], running=[1, 1])
        assert {decide("least_loaded", view, seed=s).worker for s in range(20)} == {"a/0", "b/0"}

    def test_a_burst_spreads_evenly_although_nothing_finished(self, make_ledger, make_request) -> None:
        chosen = drive("least_loaded", make_ledger("a", "b", "c"), [make_request(f"r{i}") for i in range(30)])
        assert set(Counter(chosen).values()) == {10}


class TestPowerOfTwo:
    def test_never_takes_the_most_loaded_of_three(self) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0"], running=[9, 1, 1])
        assert {decide("power_of_two", view, seed=s).worker for s in range(50)} == {"b/0", "c/0"}

    def test_says_who_was_drawn(self) -> None:
        decision = decide("power_of_two", FleetView.of(["a/0", "b/0", "c/0"]))
        assert sorted(decision.terms["drawn"].tolist()) == [0, 1, 1]

    def test_stays_near_even(self, make_ledger, make_request) -> None:
        requests = [make_request(f"r{i}") for i in range(800)]
        counts = Counter(drive("power_of_two", make_ledger("a", "b", "c", "d", "e", "f", "g", "h"), requests))
        assert max(counts.values()) - min(counts.values()) <= 8


class TestSession:
    KEYS = tuple(f"user-{i}" for i in range(600))

    def where(self, workers: list[str], exclusion: list[int] | None = None) -> dict[str, str | None]:
        view = FleetView.of(workers, exclusion=exclusion or [0] * len(workers))
        return {k: decide("session", view, Request("r", "m", 0.0, 1, route_key=k)).worker for k in self.KEYS}

    def test_a_key_stays_whatever_the_order_and_load(self) -> None:
        assert self.where(["a/0", "b/0", "c/0"]) == self.where(["c/0", "a/0", "b/0"])

    def test_keys_spread_over_all(self) -> None:
        counts = Counter(self.where(["a/0", "b/0", "c/0"]).values())
        assert all(150 < count < 250 for count in counts.values())

    def test_only_the_keys_of_a_lost_worker_move(self) -> None:
        before = self.where(["a/0", "b/0", "c/0"])
        after = self.where(["a/0", "b/0", "c/0"], [0, Exclusion.UNREACHABLE, 0])
        assert all(after[k] == w for k, w in before.items() if w != "b/0")
        assert self.where(["a/0", "c/0"]) == after

    def test_without_a_key_it_says_so(self) -> None:
        decision = decide("session", FleetView.of(["a/0", "b/0"], running=[5, 0]))
        assert decision.worker == "b/0"
        assert decision.policy == "session"
        assert "no route key" in (decision.note or "")


class TestPrefix:
    def test_takes_the_best_match_within_the_guard(self) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0"], cached_tokens=[10, 980, 40], running=[0, 5, 0])
        assert decide("prefix", view, LONG).worker == "b/0"

    def test_leaves_a_match_that_is_too_busy(self) -> None:
        view = FleetView.of(["a/0", "b/0", "c/0"], cached_tokens=[0, 90, 40], running=[0, 20, 0])
        decision = decide("prefix", view)
        assert decision.worker == "c/0"
        assert decision.terms["load_price_tokens"].tolist() == [0, 20 * LOAD_TOKENS + 100 * (20 - 22 / 3 - 4), 0]

    def test_a_short_common_beginning_does_not_draw_everybody_to_one_worker(self, make_ledger, make_request) -> None:
        requests = [make_request(f"r{i}", b"s" * 320 + bytes([i]) * 160) for i in range(12)]
        counts = Counter(drive("prefix", make_ledger("a", "b"), requests))
        assert set(counts.values()) == {6}

    def test_equal_matches_go_to_the_less_loaded(self) -> None:
        view = FleetView.of(["a/0", "b/0"], cached_tokens=[50, 50], running=[2, 1])
        assert decide("prefix", view).worker == "b/0"

    def test_siblings_of_a_burst_land_together_and_strangers_spread(self, make_ledger, make_request) -> None:
        texts = [bytes([65 + g]) * 8000 for g in range(3)]
        requests = [make_request(f"{g}-{i}", texts[g]) for i in range(4) for g in range(3)]
        chosen = drive("prefix", make_ledger("a", "b", "c"), requests)
        for group in range(3):
            assert len(set(chosen[group::3])) == 1
        assert len(set(chosen)) == 3

    def test_a_hot_prefix_spreads_before_one_worker_has_more_than_its_share(self, make_ledger, make_request) -> None:
        requests = [make_request(f"r{i}", b"h" * 640) for i in range(400)]
        counts = Counter(drive("prefix", make_ledger("a", "b", "c", "d"), requests))
        assert max(counts.values()) / (len(requests) / 4) <= 1.5

    def test_a_new_worker_gets_its_share_and_not_everything(self, make_ledger, make_request) -> None:
        ledger = make_ledger("a", "b", "c")
        drive("prefix", ledger, [make_request(f"r{i}", b"h" * 640) for i in range(60)])
        ledger.apply(ev.WorkerJoined(_spec("d"), 0))
        ledger.apply(ev.HealthRead(worker_id("d"), 0, True, True, "ok"))
        chosen = drive("prefix", ledger, [make_request(f"s{i}", bytes([i]) * 640) for i in range(100)])
        assert 20 <= Counter(chosen)["d/0"] <= 60


def _spec(engine: str):
    return WorkerSpec(worker_id(engine), f"http://{engine}", "vllm", ("m",))


class TestKv:
    def test_counts_what_is_left_to_compute_and_what_waits_before(self) -> None:
        view = FleetView.of(
            ["a/0", "b/0", "c/0"], cached_tokens=[900, 0, 0], prefill_tokens=[4000, 0, 1000], exact=[1, 1, 1]
        )
        decision = decide("kv", view, LONG)
        assert decision.worker == "b/0"
        assert decision.scores.tolist() == [2100, 1000, 1500]

    def test_terms_add_up_to_the_score(self) -> None:
        view = FleetView.of(
            ["a/0", "b/0"], cached_tokens=[900, 0], offloaded_tokens=[0, 800], prefill_tokens=[50, 7], running=[9, 1]
        )
        decision = decide("kv", view, LONG)
        parts = ("new_tokens", "waiting_tokens", "load_price_tokens")
        assert sum(decision.terms[name] for name in parts).tolist() == decision.scores.tolist()
        assert decision.terms["new_tokens"].tolist() == [100, 1000 - 0.75 * 800]

    def test_it_says_when_it_had_to_guess(self) -> None:
        view = FleetView.of(["a/0", "b/0"], cached_tokens=[900, 0], exact=[0, 1])
        assert decide("kv", view, LONG).note == NOT_EXACT
        view = FleetView.of(["a/0", "b/0"], cached_tokens=[900, 0], exact=[1, 0])
        assert decide("kv", view, LONG).note is None


class TestAuto:
    def test_is_cost_with_and_without_kv_events(self) -> None:
        assert decide("auto", FleetView.of(["a/0", "b/0"], exact=[0, 1])).policy == "cost"
        assert decide("auto", FleetView.of(["a/0", "b/0"])).policy == "cost"


class TestRegistry:
    def test_an_unknown_name_is_answered_with_the_nearest_and_all(self) -> None:
        with pytest.raises(PolicyError, match=r"did you mean 'round_robin'.*least_loaded"):
            REGISTRY.get("round-robin")

    def test_a_third_party_policy_has_the_same_rights_and_no_taken_name(self) -> None:
        class Mine:
            name = "mine"

            def decide(self, request, view, timing, now_ms, rng):
                return decide("random", view, request)

        registry = PolicyRegistry([Mine()])
        assert "mine" in registry.names()
        assert (
            registry.get("mine").decide(REQUEST, FleetView.of(["a/0"]), NO_TIMING, 0.0, random.Random(0)).worker
            == "a/0"
        )
        with pytest.raises(PolicyError, match="already"):
            registry.add(Mine())

    def test_what_cannot_decide_is_refused(self) -> None:
        with pytest.raises(PolicyError, match="needs a name and decide"):
            PolicyRegistry([object()])  # type: ignore[list-item]


def test_the_column_names_of_views_are_checked() -> None:
    assert FleetView.of(["a/0"], running=[3]).column(Column.RUNNING).tolist() == [3]
    with pytest.raises(KeyError):
        FleetView.of(["a/0"], speed=[1])
