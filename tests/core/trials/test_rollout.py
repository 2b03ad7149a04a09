"""Two policies as one, and policies that only say what they would do."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Aggregate, Disaggregate, Reject
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.least_loaded import LeastLoaded
from pointsman.core.policies.round_robin import RoundRobin
from pointsman.core.trials.arms import Arm, By, Split
from pointsman.core.trials.rollout import Rollout
from pointsman.core.trials.shadow import ShadowTally, predicted_saving_ms
from support.plan_fleets import backlog, decide, fleet, link, times

VIEW = FleetView.of(["a/0", "b/0", "c/0"], running=[3, 1, 2], last_dispatch=[1, 3, 2])


def made(unit: str, scores: list[float], worker: str | None) -> Decision:
    plan = Reject("no") if worker is None else Aggregate(WorkerId(worker))
    return Decision("r", "p", 0.0, plan, VIEW, unit, np.array(scores))


def test_a_rollout_decides_as_the_policy_of_the_arm() -> None:
    split = Split("round_robin", 0.3, By.REQUEST)
    rollout = Rollout(LeastLoaded(), RoundRobin(), split)
    assert rollout.name == "least_loaded+round_robin@30%"
    by = {"least_loaded": 0, "round_robin": 0}
    for i in range(200):
        request = Request(f"r{i}", "m", 0.0, 1)
        found = rollout.decide(request, VIEW, {}, 0.0, random.Random(0))
        assert found.policy == rollout.of(split.place(request).arm).name
        assert found.worker == ("a/0" if split.place(request).arm is Arm.TRIAL else "b/0")
        by[found.policy] += 1
    assert 35 < by["round_robin"] < 85


def test_a_rollout_of_the_same_policy_is_refused() -> None:
    with pytest.raises(PolicyError, match="least_loaded decides already"):
        Rollout(LeastLoaded(), LeastLoaded(), Split("least_loaded", 0.5, By.REQUEST))
    with pytest.raises(PolicyError, match="a split for kv can't be used for round_robin"):
        Rollout(LeastLoaded(), RoundRobin(), Split("kv", 0.5, By.REQUEST))


def test_a_saving_is_predicted_by_whoever_predicts_times() -> None:
    cost, plain = made("ms", [30.0, 10.0, 20.0], "b/0"), made("requests", [3, 1, 2], "a/0")
    assert predicted_saving_ms(cost, plain) == 10 - 30  # the shadow's choice costs 20 ms more
    assert predicted_saving_ms(plain, cost) == 30 - 10
    assert predicted_saving_ms(cost, made("ms", [0.0, 99.0, 0.0], "c/0")) == 10 - 20  # by the acting one's scores
    assert predicted_saving_ms(plain, made("requests", [3, 1, 2], "b/0")) is None
    assert predicted_saving_ms(cost, made("none", [0, 0, 0], None)) is None


def test_a_shadow_is_counted() -> None:
    tally = ShadowTally()
    cost, plain = made("ms", [30.0, 10.0, 20.0], "b/0"), made("requests", [3, 1, 2], "a/0")
    tally.add(cost, plain, 0.5)
    tally.add(cost, cost, 0.5)
    tally.add(made("none", [], None), made("none", [], None), 0.5)
    tally.fail(1.0)
    assert tally == ShadowTally(decisions=3, agreed=2, failed=1, spent_ms=2.5, compared=2, saved_ms=-20.0)


def test_who_computes_the_prompt_counts_where_decisions_are_compared() -> None:
    view = fleet("ppd", **backlog("ppd", w2=20_000))
    acting = decide(view, times(view, link(1e6)))
    assert acting.prefill_worker is not None
    prefill = WorkerId("w0/0" if acting.prefill_worker == "w1/0" else "w1/0")
    other = replace(acting, plan=Disaggregate(prefill, WorkerId("w2/0")))
    alone = replace(acting, plan=Aggregate(WorkerId("w2/0")))
    tally = ShadowTally()
    for shadow in (acting, other, alone):
        tally.add(acting, shadow, 0.5)
    assert acting.plans is not None
    assert (tally.decisions, tally.agreed) == (3, 1)
    saved = predicted_saving_ms(acting, alone)
    assert saved == pytest.approx(acting.plans.scores.min() - acting.scores[2])
    assert saved < 0
