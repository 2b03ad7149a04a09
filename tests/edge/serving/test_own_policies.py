"""Policies of users, live: what one does wrong costs its own requests, and nothing that is kept of others."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pointsman.core.model.decision import Decision
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.policy import Timing, decision
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.edge.serving.decider import MOST_NOTES
from support.scripted_fleet import Fleet


class Own:
    """Takes the first worker, and changes the decision as a test says."""

    name = "own"

    def __init__(self) -> None:
        self.change: Callable[[Decision], Any] = lambda made: made

    def decide(self, request: Request, view: FleetView, timing: Timing, now_ms: float, rng: random.Random) -> Any:
        return self.change(decision(self.name, request, view, now_ms, 0, view.load, "requests"))


@pytest.fixture
async def own(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Own:
    policy = Own()
    monkeypatch.setattr("pointsman.edge.serving.frontend.load_registry", lambda: PolicyRegistry([policy]))
    await fleet.engine("a")
    await fleet.engine("b")
    await fleet.open(policy="own", debug_headers=True)
    return policy


def end(made: Decision) -> Decision:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "change",
    [lambda made: replace(made, terms={"x_ms": np.zeros(1)}), lambda made: replace(made, scores=[1, 2]), end],
    ids=["terms", "scores", "exit"],
)
async def test_a_decision_that_is_none_costs_one_request(fleet: Fleet, own: Own, change: Callable[..., Any]) -> None:
    own.change = change
    answer = await fleet.ask(
        "/v1/chat/completions",
        {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        headers=[(b"x-pointsman-explain", b"1")],
    )
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "policy_failed")
    own.change = lambda made: made
    assert (await fleet.chat()).status == 200
    found = await fleet.ask("/v1/decisions?last=10", method="GET", admin=True)
    assert found.status == 200
    assert [row["http"] for row in json.loads(found.body)["decisions"]] == [200, 500]
    fleet.at_rest()


async def test_notes_that_are_always_others_are_not_each_counted(fleet: Fleet, own: Own) -> None:
    numbers = itertools.count()
    own.change = lambda made: replace(made, note=f"note {next(numbers)}")
    for _ in range(MOST_NOTES + 10):
        await fleet.chat()
    metrics = (await fleet.ask("/metrics", method="GET", admin=True)).body.decode()
    counted = [line for line in metrics.splitlines() if line.startswith("pointsman_policy_fallbacks_total{")]
    assert len(counted) == MOST_NOTES + 1
    assert 'pointsman_policy_fallbacks_total{note="others",policy="own"} 10.0' in counted
