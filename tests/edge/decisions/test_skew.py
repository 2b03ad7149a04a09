"""Uneven load: each cause is named when it, and nothing else, was put in."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.kv import Kv
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.policy import Policy, Timing, decision
from pointsman.core.policies.power_of_two import PowerOfTwo
from pointsman.core.policies.random_choice import RandomChoice
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.policies.session import Session
from pointsman.edge.decisions.facts import WorkerFacts
from pointsman.edge.decisions.skew import SkewReport, skew
from pointsman.edge.telemetry.decision_row import DecisionRow
from support.dealt_rows import dealt

COUNT = 600
WORKERS = ("a/0", "b/0", "c/0", "d/0")


def report(rows: list[DecisionRow], *facts: WorkerFacts) -> SkewReport:
    (only,) = skew(rows, {"m": {fact.worker: fact for fact in facts}})
    return only


def kinds(one: SkewReport) -> list[str]:
    assert one.verdict == "skewed", one.sentence
    return sorted({cause.kind for cause in one.causes})


def tenant(number: int, rng: random.Random) -> str:
    """Three tenants send most; there are a few small ones."""
    return f"tenant-{rng.choices(range(10), [45, 25, 15, 3, 3, 2, 2, 2, 2, 1])[0]}"


def hot(number: int, rng: random.Random) -> list[int]:
    """Half of the prompts begin with the same 1,600 tokens."""
    own = [1_000_000 + 1_000 * number + block for block in range(10)]
    return list(range(100)) + own if rng.random() < 0.5 else own


class Weighted:
    name = "weighted"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        row = int(int(request.id[1:]) % 5 > 0)
        return decision(self.name, request, view, now_ms, row, view.load, "requests")


class Share:
    """The first so many go to a/0."""

    name = "share"

    def __init__(self, first: int) -> None:
        self._first = first

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        row = int(int(request.id[1:]) >= self._first)
        return decision(self.name, request, view, now_ms, row, view.load, "requests")


@pytest.mark.parametrize("policy", [RandomChoice(), RoundRobin(), LeastLoaded(), Kv()], ids=lambda one: one.name)
def test_no_imbalance_beyond_chance(policy: Policy) -> None:
    one = report(dealt(policy, COUNT))
    assert (one.verdict, one.causes) == ("even", [])
    assert "no imbalance beyond chance" in one.sentence


def test_weights_of_a_log_are_those_of_its_decisions() -> None:
    """A log has no facts of workers; b/0 was given 4 times as much as a/0, on purpose."""
    rows = dealt(Weighted(), COUNT, workers=("a/0", "b/0"))
    assert report(rows).verdict == "skewed"
    for row in rows:
        for one in row.candidates:
            one.weight = 4.0 if one.worker == "b/0" else 1.0
    told = report(rows)
    assert told.verdict == "even", told.sentence
    assert [one.fair_share for one in told.workers] == [0.2, 0.8]
    facts = (WorkerFacts("a/0"), WorkerFacts("b/0"))
    assert report(rows, *facts).verdict == "skewed"  # what a front end says now counts more


def test_an_imbalance_that_chance_makes_now_and_then_is_told_so() -> None:
    """1.3 times its share is seldom by chance, but not seldom enough to be called skewed."""
    rows = dealt(Share(39), 60, workers=("a/0", "b/0"))
    told = report(rows)
    assert told.verdict == "even"
    assert told.by_requests.most > told.by_requests.most_by_chance
    assert f"which {100 * told.by_requests.most_chance:.1f} % of random deals reach, too" in told.sentence
    assert 0.01 <= told.by_requests.most_chance < 0.1


def test_many_equal_keys_are_even() -> None:
    assert report(dealt(Session(), COUNT, key=lambda number, rng: f"chat {number}")).verdict == "even"


def test_route_keys_too_coarse() -> None:
    one = report(dealt(Session(), COUNT, key=tenant))
    assert kinds(one) == ["route_keys"]
    evidence = one.causes[0].evidence
    assert evidence["keys"] == 10
    assert 2.5 < float(evidence["effective_keys"]) < 4.5
    assert float(evidence["top_keys_share"]) == pytest.approx(0.85, abs=0.05)


def test_keys_that_do_not_decide_are_no_cause() -> None:
    assert report(dealt(LeastLoaded(), COUNT, key=tenant)).verdict == "even"
    assert kinds(report(dealt(LeastLoaded(), COUNT, key=tenant, slower={"a/0": 4.0}))) == ["workers"]


@pytest.mark.parametrize("policy", [LeastLoaded(), PowerOfTwo()], ids=lambda one: one.name)
def test_keys_of_few_requests_seem_to_stay_where_most_requests_go_and_are_no_cause(policy: Policy) -> None:
    """Metrics send most requests to one of two workers, and so most of each conversation, whoever has it."""
    chats, two = COUNT // 2, WORKERS[:2]
    rows = dealt(policy, chats, key=lambda number, rng: f"chat {number // 3}", workers=two, foreign={"a/0": 12})
    assert kinds(report(rows)) == ["metrics"]


def test_a_hot_prefix() -> None:
    one = report(dealt(Kv(), COUNT, blocks=hot))
    assert kinds(one) == ["hot_prefix"]
    assert one.causes[0].evidence["prefix_tokens"] == 1600
    assert float(one.causes[0].evidence["prefix_share"]) == pytest.approx(0.5, abs=0.05)


def test_a_prefix_that_draws_nobody_is_no_cause() -> None:
    assert report(dealt(RandomChoice(), COUNT, blocks=hot)).verdict == "even"
    assert "hot_prefix" not in kinds(report(dealt(LeastLoaded(), COUNT, blocks=hot, slower={"a/0": 4.0})))


def test_metrics_that_show_load_nobody_sent() -> None:
    one = report(dealt(LeastLoaded(), COUNT, foreign={"c/0": 4}))
    assert kinds(one) == ["metrics"]
    (cause,) = one.causes
    assert cause.evidence["worker"] == "c/0"
    assert float(cause.evidence["load_nobody_sent"]) == pytest.approx(4, abs=0.3)
    assert float(cause.evidence["usual_load_nobody_sent"]) == pytest.approx(0, abs=0.3)


def test_metrics_that_show_a_full_queue() -> None:
    full = dealt(
        LeastLoaded(), COUNT, excluded=lambda n, w: Exclusion.QUEUE_FULL if w == "b/0" and n % 8 else Exclusion.NONE
    )
    assert kinds(report(full)) == ["metrics"]


def test_a_slow_worker_gets_less() -> None:
    rows = dealt(LeastLoaded(), COUNT, slower={"a/0": 3.0})
    one = report(rows)
    assert kinds(one) == ["workers"]
    assert one.causes[0].evidence["worker"] == "a/0"
    assert float(one.causes[0].evidence["times_as_long"]) == pytest.approx(3, rel=0.1)
    assert "learned" in report(rows, WorkerFacts("a/0", factor=2.9)).causes[0].text


def test_a_slow_worker_is_busy_for_longer_with_as_many() -> None:
    one = report(dealt(RoundRobin(), COUNT, slower={"a/0": 3.0}))
    assert kinds(one) == ["workers"]
    assert one.by_requests.most < 1.05 < 1.4 < one.by_time.most


def test_a_worker_that_was_out_for_half_of_the_time() -> None:
    away = dealt(
        LeastLoaded(), COUNT, excluded=lambda n, w: Exclusion.DRAINING if w == "b/0" and n < 300 else Exclusion.NONE
    )
    one = report(away)
    assert kinds(one) == ["workers"]
    assert one.causes[0].evidence["reason"] == "draining"


class Shy:
    """Gives d/0 a third of what the others get, for no reason that can be seen."""

    name = "shy"

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Decision:
        row = rng.choices(range(4), [3, 3, 3, 1])[0]
        return decision(self.name, request, view, now_ms, row, np.zeros(4), "points")


def test_a_small_cache() -> None:
    """Nothing but its size tells it from the others."""
    facts = [WorkerFacts(worker, kv_capacity_tokens=10_000 if worker == "d/0" else 100_000) for worker in WORKERS]
    one = report(dealt(Shy(), COUNT), *facts)
    assert kinds(one) == ["workers"]
    assert one.causes[0].evidence["kv_capacity_tokens"] == 10_000


def test_weights_are_fair_shares() -> None:
    weights = [WorkerFacts(worker, weight=1 / 3 if worker == "d/0" else 1.0) for worker in WORKERS]
    assert report(dealt(Shy(), COUNT), *weights).verdict == "even"


def test_what_can_not_be_explained_is_said() -> None:
    one = report(dealt(Shy(), COUNT))
    assert (one.verdict, one.causes) == ("skewed", [])
    assert "no cause that can be told" in one.sentence


def test_too_few_one_worker_and_models_apart() -> None:
    few = report(dealt(RandomChoice(), 10))
    assert (few.verdict, few.requests) == ("too_few", 10)
    assert report(dealt(RandomChoice(), 10, workers=["a/0"])).verdict == "one_worker"
    other = dealt(RandomChoice(), 40)
    for row in other:
        row.model = "n"
    assert [one.model for one in skew([*dealt(RandomChoice(), 60), *other], {})] == ["m", "n"]
    assert skew([], {}) == []


def test_a_worker_that_got_nothing_counts() -> None:
    rows = dealt(RandomChoice(), COUNT, workers=["a/0", "b/0"])
    one = report(rows, WorkerFacts("a/0"), WorkerFacts("b/0"), WorkerFacts("c/0"))
    assert [(share.worker, share.requests > 0) for share in one.workers] == [
        ("a/0", True),
        ("b/0", True),
        ("c/0", False),
    ]
    assert one.verdict == "skewed"


def test_workers_for_prompts_only_have_no_share_of_answers() -> None:
    def excluded(number: int, worker: str) -> Exclusion:
        return Exclusion.ROLE if worker == "d/0" else Exclusion.NONE

    rows = dealt(RoundRobin(), COUNT, workers=WORKERS, excluded=excluded)
    told = report(rows, *(WorkerFacts(worker) for worker in WORKERS))
    assert [one.worker for one in told.workers] == ["a/0", "b/0", "c/0"]
    assert told.verdict == "even"
