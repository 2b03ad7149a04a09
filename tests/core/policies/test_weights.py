from __future__ import annotations

import random
from collections import Counter

import pytest

from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.policy import NO_TIMING
from pointsman.core.policies.registry import PolicyRegistry
from pointsman.core.policies.weights import load_factors, weighted_load

REGISTRY = PolicyRegistry()
REQUEST = Request("r", "m", 0.0, 100)


def view(*weights: int, **columns: list[int]) -> FleetView:
    return FleetView.of([f"w{n}/0" for n in range(len(weights))], weight_permille=list(weights), **columns)


def decide(name: str, seen: FleetView, seed: int = 0):
    return REGISTRY.get(name).decide(REQUEST, seen, NO_TIMING, 0.0, random.Random(seed))


@pytest.mark.parametrize("name", ["least_loaded", "power_of_two", "kv", "prefix", "cost"])
@pytest.mark.parametrize(("running", "chosen"), [([3, 6], "w1/0"), ([3, 9], "w0/0"), ([0, 0], "w1/0")])
def test_load_is_weighed(name: str, running: list[int], chosen: str) -> None:
    assert decide(name, view(1000, 2000, running=running)).worker == chosen


def test_chances_are_by_weight() -> None:
    drawn = Counter(decide("random", view(1000, 3000, 500), seed).worker for seed in range(4_500))
    assert [drawn[f"w{n}/0"] / 4_500 for n in range(3)] == pytest.approx([2 / 9, 6 / 9, 1 / 9], abs=0.02)


def test_what_least_loaded_shows_adds_up() -> None:
    made = decide("least_loaded", view(1000, 2000, running=[3, 6], foreign=[1, 0]))
    assert made.scores.tolist() == [9.0, 6.0]
    assert sum(made.terms.values()).tolist() == [9.0, 6.0]
    assert "weight" not in decide("least_loaded", view(500, 500, running=[3, 6])).terms


def test_equal_weights_are_none_and_a_view_without_any_is_as_ever() -> None:
    for seen in (view(500, 500, running=[1, 2]), FleetView.of(["w0/0", "w1/0"], running=[1, 2])):
        rows = seen.eligible_rows()
        assert load_factors(seen, rows) is None
        assert weighted_load(seen, rows).tolist() == [1, 2]


def test_each_is_weighed_beside_those_that_do_the_same() -> None:
    role, draining = int(Exclusion.ROLE), int(Exclusion.DRAINING)
    seen = view(1000, 500, 4000, 2000, 9000, exclusion=[0, 0, role, role, draining])
    factors = load_factors(seen, seen.eligible_rows())
    assert factors is not None
    assert factors.tolist() == [1.0, 2.0, 1.0, 2.0, 1.0]
