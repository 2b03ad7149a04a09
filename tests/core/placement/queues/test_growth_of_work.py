"""What a cycle works out does not grow with how many wait, as long as they are of few kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from tests.support.gangs import empty, role, still

from pointsman.core.placement.gang import Gang, Near
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.queues import reservation
from pointsman.core.placement.queues.books import Settings
from pointsman.core.placement.queues.cycle import CycleResult, cycle
from pointsman.core.placement.queues.rooms import Rooms
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState

KINDS = (
    Gang("small", (role("worker", 1, 2),)),
    Gang("pair", (role("prefill", 1, 8, 2), role("decode", 2, 8, 4)), (Near(("prefill", "decode"), "rack"),)),
    Gang("wide", (role("worker", 1, 8, pods_per_replica=3, replica_required="rack"),)),
)


def full(nodes: int = 6) -> ClusterState:
    state = empty(nodes, per_rack=3, racks_per_zone=2)
    everything = Gang("everything", (role("worker", nodes, 8),), preemptible=False)
    found = place(state, everything, budget_s=60, clock_s=still)
    assert isinstance(found, Placement)
    return state.hold(found)


def look(state: ClusterState, waiting: int) -> CycleResult:
    gangs = [replace(KINDS[at % 3], name=f"g{at}", submitted_at_s=float(at)) for at in range(waiting)]
    return cycle(state, gangs, {"everything": 0.0}, 5_000.0, clock_s=still)


def calls(monkeypatch: pytest.MonkeyPatch, waiting: int) -> int:
    count = 0

    def counted(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        return place(*args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("pointsman.core.placement.queues.books.place", counted)
        result = look(full(), waiting)
    assert len(result.waiting) == waiting
    assert {answer.gang.name for answer in result.waiting.values()} == set(result.waiting)
    return count


def test_gangs_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = calls(monkeypatch, 6), calls(monkeypatch, 600)
    assert 0 < few == many


def test_a_kind_that_fits_nowhere_is_tried_once_for_nodes_to_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(reservation, "_nodes_for", lambda books, gang: tried.append(gang.name))
    look(full(), 300)
    assert tried == ["g0", "g1", "g2"]


@pytest.mark.parametrize(("asked", "tried"), [(1, [1]), (2, [2]), (3, [])])
def test_only_as_many_give_way_as_hold_enough_together(
    asked: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two elastic replicas of a node each could be given up: what asks for more than both is told without a try."""
    state = empty(6, per_rack=3, racks_per_zone=2)
    for gang in (Gang("firm", (role("worker", 3, 8),), preemptible=False), Gang("wide", (role("worker", 1, 8, 3),))):
        found = place(state, gang, budget_s=60, clock_s=still)
        assert isinstance(found, Placement)
        state = state.hold(found)
    sizes = set()
    without = ClusterState.without

    def counted(self: ClusterState, replicas: Mapping[str, Collection[tuple[str, int]] | None]) -> ClusterState:
        sizes.add(sum(len(some or ()) for some in replicas.values()))
        return without(self, replicas)

    monkeypatch.setattr(ClusterState, "without", counted)
    settings = Settings(consolidate=False, reserve_after_s=1e9)
    urgent = Gang("urgent", (role("worker", asked, 8),))
    result = cycle(state, [urgent], {"firm": 0.0, "wide": 0.0}, 5_000.0, clock_s=still, settings=settings)
    assert ("urgent" in result.state.placements) == bool(tried)
    assert sizes - {2} == set(tried) - {2}  # all are tried first
    assert bool(sizes) == bool(tried)


class TestRooms:
    def placed(self, gang: Gang) -> tuple[ClusterState, Placement]:
        state = empty(6, per_rack=3, racks_per_zone=2)
        found = place(state, gang, budget_s=60, clock_s=still, elastic=False)
        assert isinstance(found, Placement)
        return state.hold(found), found

    def may(self, state: ClusterState, have: Placement, name: str, *, movable: bool = False) -> bool:
        return Rooms(state, None).may_take(have.gang, have, have.gang.group(name), movable=movable)

    def test_of_a_domain_that_is_settled_only_what_is_free_there_counts(self) -> None:
        gang = Gang("g", (role("worker", 3, 8, 4, required="rack"),))
        state, have = self.placed(gang)
        assert not self.may(state, have, "worker")
        assert self.may(state, have, "worker", movable=True)

    def test_pins_of_two_levels_count_both(self) -> None:
        groups = (role("worker", 1, 8, 3), role("other", 2, 8))
        state, have = self.placed(Gang("g", groups, (Near(("worker", "other"), "rack"),), required="zone"))
        assert not self.may(state, have, "worker")

    def test_replicas_of_several_pods_need_room_in_one_domain(self) -> None:
        gang = Gang("g", (role("worker", 1, 8, 2, pods_per_replica=2, replica_required="rack"),))
        state, have = self.placed(gang)
        assert self.may(state, have, "worker")
        rest = Gang("rest", (role("w", 2, 8, replica_required="rack", pods_per_replica=1),))
        pods = tuple(PodPlace("w", at, 0, node, tuple(range(8))) for at, node in enumerate(self.one_a_rack(state)))
        assert not self.may(state.hold(Placement(rest, pods)), have, "worker")

    def one_a_rack(self, state: ClusterState) -> list[str]:
        """Nodes to fill so that no rack has two that are free."""
        free = [node for node, gpus in zip(state.nodes, state.whole_free, strict=True) if gpus == 8]
        racks = [node.labels["rack"] for node in free]
        return [node.name for at, node in enumerate(free) if racks.index(node.labels["rack"]) != at]

    def test_parts_of_gpus_and_what_is_full(self) -> None:
        state, have = self.placed(Gang("g", (role("worker", 1, 0.5, 2),)))
        assert self.may(state, have, "worker")
        assert not self.may(full(), have, "worker")
