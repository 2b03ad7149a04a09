"""The solver against integer programming on random small clusters: same answer, same cost, valid placements."""

from __future__ import annotations

import random

import pytest

from harness.placement_cases import random_gang, random_state
from harness.placement_check import cost_of_pods, faults
from harness.placement_oracle import least_cost
from pointsman.core.placement import optimize
from pointsman.core.placement.plan import Optimal, Placement
from pointsman.core.placement.solver import place
from support.racks import ticking

BLOCK = 100


@pytest.mark.parametrize("block", range(8))
def test_no_placement_is_missed_and_none_has_more_spread_than_needed(block: int) -> None:
    placed = 0
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        rng = random.Random(seed)
        state = random_state(rng)
        gang = random_gang(rng, state)
        found = place(state, gang, budget_s=60, clock_s=ticking(), elastic=False, explained=False)
        best = least_cost(state, gang)
        if not isinstance(found, Placement):
            assert found.proved
            assert best is None, f"seed {seed}: missed a placement that costs {best}"
            continue
        placed += 1
        assert found.cost == best, f"seed {seed}"
        assert found.statement == Optimal()
        assert faults(state, found) == [], f"seed {seed}"
        if found.pods and not any(group.replica_preferred for group in gang.groups):
            assert found.cost == cost_of_pods(state, gang, found.pods), f"seed {seed}"
    assert placed > BLOCK // 3


def test_the_quick_ways_of_large_gangs_end_in_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "_LARGE", 0)
    for seed in range(2000, 2150):
        rng = random.Random(seed)
        state = random_state(rng)
        gang = random_gang(rng, state)
        found = place(state, gang, budget_s=60, clock_s=ticking(), elastic=False, explained=False)
        best = least_cost(state, gang)
        assert (found.cost if isinstance(found, Placement) else None) == best, f"seed {seed}"


@pytest.mark.parametrize("block", range(3))
def test_a_gang_that_lost_a_node_is_repaired_in_the_best_way(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        rng = random.Random(seed)
        state = random_state(rng)
        gang = random_gang(rng, state)
        before = place(state, gang, budget_s=60, clock_s=ticking(), elastic=False, explained=False)
        if not isinstance(before, Placement) or not before.pods:
            continue
        lost = rng.choice(sorted(before.nodes))
        kept = before.without_nodes([lost])
        after = state.hold(before).with_ready([lost], False).exchange(kept)
        found = place(after, gang, budget_s=60, clock_s=ticking(), kept=kept, elastic=False, explained=False)
        best = least_cost(after, gang, kept)
        if not isinstance(found, Placement):
            assert best is None, f"seed {seed}: missed a repair that costs {best}"
            continue
        assert found.cost == best, f"seed {seed}"
        assert found.pods[: len(kept.pods)] == kept.pods
        assert faults(state.with_ready([lost], False), found) == [], f"seed {seed}"


def test_elastic_replicas_keep_what_is_required_and_leave_the_floors_cost() -> None:
    grown = 0
    for seed in range(150):
        rng = random.Random(seed)
        state = random_state(rng)
        gang = random_gang(rng, state)
        floors = place(state, gang, budget_s=60, clock_s=ticking(), elastic=False, explained=False)
        found = place(state, gang, budget_s=60, clock_s=ticking(), explained=False)
        assert isinstance(found, Placement) == isinstance(floors, Placement)
        if isinstance(found, Placement) and isinstance(floors, Placement):
            assert faults(state, found) == [], f"seed {seed}"
            assert found.cost == floors.cost
            grown += len(found.pods) > len(floors.pods)
    assert grown > 30
