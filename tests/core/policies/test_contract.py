"""What decisions have to keep to: live each of these costs one request, and must not spoil what is kept of others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.errors import PolicyError
from pointsman.core.model.plan import Aggregate
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.model.worker import WorkerId
from pointsman.core.policies.contract import decided, failure
from pointsman.core.policies.policy import NO_TIMING, decision

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
