"""What decisions have to keep to: live each of these costs one request, and must not spoil what is kept of others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pointsman.core.model.decision import Decision, PlanRows
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Aggregate, Disaggregate, Pull
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.contract import decided, failure
from pointsman.core.policies.policy import NO_TIMING, decision
from support.plan_fleets import fleet, rules

REQUEST = Request("r1", "m", 0.0, 10)


class Made:
    """Decides as it is told."""

    name = "made"

    def __init__(self, change: Callable[[Decision], Any]) -> None:
        self._change = change

    def decide(self, request, view, timing, now_ms, rng) -> Any:
        return self._change(decision(self.name, request, view, now_ms, 0, view.load, "requests"))


def end(made: Decision) -> Decision:
    raise SystemExit(3)


def write(made: Decision) -> Decision:
    made.view.table[:] = 0
    return made


def decide(change: Callable[[Decision], Any]) -> Decision:
    view = FleetView.of(["a/0", "b/0"], exclusion=[0, Exclusion.DRAINING])
    return decided(Made(change), REQUEST, view, NO_TIMING, 0.0, random.Random(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda made: None, "it returned NoneType"),
        (lambda made: replace(made, plan=Aggregate(WorkerId("b/0"))), "it chose b/0, which is excluded: draining"),
        (lambda made: replace(made, plan=Aggregate(WorkerId("c/0"))), "it chose c/0, which is no candidate"),
        (lambda made: replace(made, view=FleetView.of(["a/0", "b/0"])), "another view"),
        (lambda made: replace(made, scores=np.zeros(3)), r"scores: expected an array of 2 numbers.*shape \(3,\)"),
        (lambda made: replace(made, scores=np.zeros((2, 1))), "scores: expected an array of 2 numbers"),
        (lambda made: replace(made, scores=np.array(["1", "2"])), "scores: expected an array of 2 numbers.*type <U1"),
        (lambda made: replace(made, scores=[0.0, 1.0]), "scores: .*not list"),
        (lambda made: replace(made, terms={"x_ms": np.zeros(1)}), "x_ms: expected an array of 2 numbers"),
        (end, r"it would end the process: SystemExit\(3\)"),
    ],
)
def test_what_is_no_decision_is_said(change: Callable[[Decision], Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        decide(change)


def test_a_view_that_others_decide_on_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decide(write)


@pytest.mark.parametrize("values", [np.zeros(2, np.int64), np.array([True, False]), np.array([np.nan, np.inf])])
def test_any_numbers_will_do(values: Any) -> None:
    assert decide(lambda made: replace(made, scores=values, terms={"x": values})).worker == "a/0"


def test_failures_in_one_line() -> None:
    policy = Made(end)
    assert failure(policy, "r1", PolicyError("it chose x")) == "the policy made failed on request r1: it chose x"
    assert failure(policy, "r1", KeyError("x")) == "the policy made failed on request r1: KeyError('x')"


def rows(**fields: Any) -> PlanRows:
    """One plan: w0 computes the prompt, w1 answers."""
    one = {"prefill": [0], "decode": [1], "source": [-1], "moved_tokens": [10]}
    arrays = {name: np.array(values) for name, values in one.items()}
    return replace(PlanRows(**arrays, scores=np.array([3.0]), terms={"a_ms": np.array([3.0])}, chosen=0), **fields)


W0, W1, W2 = (WorkerId(f"w{n}/0") for n in range(3))


class Planned(Made):
    """One that makes plans."""

    makes_plans = True


def plan(change: Callable[[Decision], Any], view: FleetView) -> Decision:
    return decided(Planned(change), REQUEST, view, NO_TIMING, 0.0, random.Random(0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plan": Disaggregate(W1, W1)}, "w1/0 can't compute the prompt for w1/0"),
        ({"plan": Disaggregate(W2, W1)}, "w2/0 can't compute the prompt for w1/0"),
        ({"plan": Disaggregate(WorkerId("x/0"), W1)}, "it chose x/0, which is no candidate"),
        ({"plan": Disaggregate(W0, W0)}, "it chose w0/0, which is excluded: its role does not fit"),
        ({"plan": Aggregate(W1, Pull(W1, 16))}, "w1/0 can't pass cached blocks on to w1/0"),
        ({"plan": Aggregate(W1, Pull(W2, 16))}, "w2/0 can't pass cached blocks on to w1/0"),
        ({"plan": Aggregate(W1, Pull(W0, 64))}, "it would fetch 64 tokens from w0/0, which holds 32"),
        ({"plans": rows(scores=np.zeros(2))}, r"plans.prefill: expected an array of 2 numbers, one a plan"),
        ({"plans": rows(terms={"a_ms": [3.0]})}, "plans.a_ms: .*not list"),
        ({"plans": rows(prefill=np.array([3]))}, "plans.prefill: rows of 3 workers wanted, not 3 to 3"),
        ({"plans": rows(decode=np.array([-1]))}, "plans.decode: rows of 3 workers wanted, not -1 to -1"),
        ({"plans": rows(chosen=1)}, "plans.chosen is 1, and there are 1 plans"),
        ({"plans": rows(excluded={0: "would not fit"})}, "it chose a plan that it excluded: would not fit"),
    ],
)
def test_what_is_no_plan_is_said(fields: dict[str, Any], message: str) -> None:
    view = fleet("pdd", kv_group=[1, 1, 2], cached_tokens=[32, 0, 0], exact=[1, 1, 0])
    assert plan(lambda made: replace(made, plan=Disaggregate(W0, W1), plans=rows()), view).prefill_worker == W0
    with pytest.raises(PolicyError, match=message):
        plan(lambda made: replace(made, **({"plan": Aggregate(W1)} | fields)), view)


def test_nothing_is_moved_against_the_operators_word() -> None:
    with pytest.raises(PolicyError, match="kv_transfer: off forbids"):
        plan(lambda made: replace(made, plan=Disaggregate(W0, W1)), fleet("pd", rules=rules("off")))
