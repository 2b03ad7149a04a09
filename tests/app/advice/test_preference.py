"""The default stays unless another policy is surely better than it."""

from __future__ import annotations

import random

import pytest

from pointsman.app.advice.findings import AWARE, DEFAULT, PLAIN
from pointsman.app.advice.preference import layer_policy, preferred, surely_better
from pointsman.core.model.request import Request
from pointsman.core.model.view import FleetView
from pointsman.core.policies.auto import Auto
from pointsman.core.policies.policy import NO_TIMING
from support.made_findings import Factors, made_findings

HALF: Factors = {"ttft_p99_ms": 0.5}
QUARTER: Factors = {"ttft_p99_ms": 0.25}


def test_the_default_is_what_decides_where_no_policy_is_set() -> None:
    made = Auto().decide(Request("r", "m", 0.0, 1), FleetView.of(["a/0"]), NO_TIMING, 0.0, random.Random(0))
    assert made.policy == DEFAULT


@pytest.mark.parametrize(
    ("measures", "aware"),
    [
        ({}, "cost"),
        ({"kv": {"ttft_p99_ms": 0.95}}, "cost"),
        ({"cost": HALF}, "cost"),
        ({"kv": HALF}, "kv"),
        ({"prefix": HALF}, "prefix"),
        # Alike, so the one that needs no KV events.
        ({"prefix": HALF, "kv": HALF}, "prefix"),
        ({"prefix": HALF, "kv": QUARTER}, "kv"),
        # Nobody beats prefix, but it does not beat the default either.
        ({"cost": {"ttft_p99_ms": 1.11}, "prefix": {"ttft_p99_ms": 1.02}, "kv": {"ttft_p99_ms": 0.96}}, "kv"),
    ],
)
def test_another_one_has_to_beat_the_default(measures: dict[str, Factors], aware: str) -> None:
    assert made_findings(measures).aware == aware


def test_what_is_advised_decides_where_a_layer_runs() -> None:
    assert layer_policy(made_findings()) == DEFAULT
    assert layer_policy(made_findings({"kv": HALF})) == "kv"


def test_loads_decide_where_measures_tell_nothing() -> None:
    more = (1.36, 1.36, 1.26, 1.36, 1.36)
    less = (1.0, 1.08, 1.0, 1.0, 1.0)
    assert made_findings(loads={"kv": more, "cost": less}).aware == "kv"
    assert made_findings(loads={"kv": less, "cost": more}).aware == "cost"
    assert made_findings({"cost": HALF}, {"kv": more, "cost": less}).aware == "cost"


def test_where_a_layer_runs_a_plain_policy_may_be_better_than_the_default() -> None:
    findings = made_findings({name: {"ttft_p99_ms": 2.0} for name in AWARE})
    assert surely_better(findings, "round_robin", DEFAULT)
    assert layer_policy(findings) == "round_robin"


def test_without_reuse_that_is_known_only_the_default_is_there() -> None:
    assert layer_policy(made_findings(names=(*PLAIN, DEFAULT))) == DEFAULT
    assert layer_policy(made_findings(names=PLAIN[:1], gpus="1")) == DEFAULT
    assert preferred(made_findings(names=PLAIN), PLAIN) == "round_robin"
