from __future__ import annotations

import pytest

from pointsman.app.placements.in_order import place_in_order
from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, Node
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, Reason, Unplaced
from pointsman.core.placement.queues.amounts import Allowance
from pointsman.core.placement.queues.tree import Queue, QueueTree
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology


def _state() -> ClusterState:
    nodes = tuple(Node(f"n{i}", 2, labels={"r": f"r{i // 2}"}, ready=i != 3) for i in range(4))
    return ClusterState.of(Cluster(nodes), Topology((Level("rack", "r"),)))


def _gang(
    name: str,
    gpus: int = 1,
    priority: int = 0,
    replicas: int = 1,
    most: int = 0,
    queue: str = "default",
    preemptible: bool = True,
) -> Gang:
    group = RoleGroup("work", replicas, max(replicas, most), Resources(1000 * gpus))
    return Gang(name, (group,), priority=priority, queue=queue, preemptible=preemptible)


def _clock() -> float:
    return 0.0


def test_the_higher_priority_goes_first_and_what_it_takes_is_gone() -> None:
    gangs = [_gang("low", 2, 0, 2), _gang("high", 2, 5, 2)]
    planned = place_in_order(_state(), gangs, budget_s=1, clock_s=_clock)
    high, low = planned.answers
    assert (high.gang.name, low.gang.name) == ("high", "low")
    assert isinstance(high, Placement)
    assert isinstance(low, Unplaced)
    assert low.reason is Reason.INSUFFICIENT_CAPACITY
    assert planned.placed == (high,)
    assert planned.after.whole_free.sum() == planned.before.whole_free.sum() - 4


def test_equal_priorities_go_as_given() -> None:
    planned = place_in_order(_state(), [_gang("b"), _gang("a")], budget_s=1, clock_s=_clock)
    assert [answer.gang.name for answer in planned.answers] == ["b", "a"]


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(PlacementError, match="two deployments have the name a"):
        place_in_order(_state(), [_gang("a"), _gang("a")], budget_s=1, clock_s=_clock)


TREE = QueueTree((Queue("default", limit=Allowance(gpu_milli=3000)),))


def test_a_queue_has_no_more_than_its_limit() -> None:
    planned = place_in_order(
        _state(), [_gang("a", 2), _gang("b", 2), _gang("c")], budget_s=1, clock_s=_clock, tree=TREE
    )
    first, second, third = planned.answers
    assert isinstance(first, Placement)
    assert isinstance(second, Unplaced)
    assert second.reason is Reason.QUOTA_EXCEEDED
    assert second.text.startswith(
        "Queue default may have at most 3 GPUs: it has 2 GPUs, and 2 GPUs more are asked for."
    )
    assert isinstance(third, Placement)


def test_elastic_replicas_end_at_the_limit() -> None:
    planned = place_in_order(_state(), [_gang("a", 1, 0, 1, 6)], budget_s=1, clock_s=_clock, tree=TREE)
    (placement,) = planned.placed
    assert placement.replicas == {"work": 3}
    assert {each.level: each.domains for each in placement.spread}["node"] == len(placement.nodes)
    assert len(place_in_order(_state(), [_gang("a", 1, 0, 1, 6)], budget_s=1, clock_s=_clock).placed[0].pods) == 6


def test_a_queue_that_is_not_there() -> None:
    planned = place_in_order(_state(), [_gang("a", queue="x")], budget_s=1, clock_s=_clock, tree=TREE)
    (answer,) = planned.answers
    assert isinstance(answer, Unplaced)
    assert "there is no queue 'x'" in answer.text.lower()


def test_floors_of_all_come_before_elastic_replicas_of_any() -> None:
    gangs = [_gang("wide", 1, 5, 1, 9), _gang("low", 2, 0, 2)]
    planned = place_in_order(_state(), gangs, budget_s=1, clock_s=_clock)
    wide, low = planned.placed
    assert (wide.replicas, low.replicas) == ({"work": 2}, {"work": 2})
    assert planned.after.whole_free.sum() == planned.before.whole_free.sum() - 6
    assert not planned.after.whole_free[planned.after.up].any()
    # Elastic replicas go in the same order: what is left is for the higher priority.
    planned = place_in_order(_state(), [_gang("b", 1, 0, 1, 9), _gang("a", 1, 1, 1, 9)], budget_s=1, clock_s=_clock)
    assert [(each.gang.name, each.replicas["work"]) for each in planned.placed] == [("a", 5), ("b", 1)]


def test_floors_may_go_elsewhere_where_there_is_room_for_elastic_replicas() -> None:
    group = RoleGroup("work", 1, 4, Resources(1000), required="rack")
    # The floor alone goes to the fuller rack, r1: what `first` has there is one GPU of the two that are up.
    first = Gang("first", (RoleGroup("work", 1, 1, Resources(1000), selector={"r": ("r1",)}),), priority=1)
    assert place_in_order(_state(), [first, _gang("a")], budget_s=1, clock_s=_clock).placed[1].nodes == {"n2"}
    a = place_in_order(_state(), [first, Gang("a", (group,))], budget_s=1, clock_s=_clock).placed[1]
    assert (a.replicas["work"], sorted(a.nodes)) == (4, ["n0", "n1"])
    assert {each.level: each.domains for each in a.spread} == {"node": 2, "rack": 1}


def test_what_can_not_be_preempted_stays_within_the_quota_with_its_elastic_replicas() -> None:
    tree = QueueTree((Queue("default", quota=Allowance(gpu_milli=3000), limit=Allowance(gpu_milli=5000)),))
    gangs = [_gang("firm", 1, 1, 1, 6, preemptible=False), _gang("soft", 1, 0, 1, 6)]
    planned = place_in_order(_state(), gangs, budget_s=1, clock_s=_clock, tree=tree)
    assert {each.gang.name: each.replicas["work"] for each in planned.placed} == {"firm": 3, "soft": 2}
    gangs = [_gang("a", 2, 1, 1, 6, preemptible=False), _gang("b", 2, 1, 1, preemptible=False)]
    first, second = place_in_order(_state(), gangs, budget_s=1, clock_s=_clock, tree=tree).answers
    assert isinstance(first, Placement)
    assert first.replicas == {"work": 1}
    assert isinstance(second, Unplaced)
    assert "quota of 3 GPUs, and gangs that can't be preempted must stay within it" in second.text


def test_a_role_without_floor_that_the_queue_can_not_afford_holds_up_no_other_role() -> None:
    groups = (RoleGroup("big", 0, 3, Resources(2000)), RoleGroup("small", 1, 3, Resources(1000)))
    tree = QueueTree((Queue("default", limit=Allowance(gpu_milli=2000)),))
    (placement,) = place_in_order(_state(), [Gang("a", groups)], budget_s=1, clock_s=_clock, tree=tree).placed
    assert placement.replicas == {"big": 0, "small": 2}
    assert {each.level: each.domains for each in placement.spread}["node"] == len(placement.nodes)


def test_what_the_queue_may_not_have_comes_with_the_changes_that_make_it_fit() -> None:
    def refusal(gang: Gang, tree: QueueTree = TREE) -> Unplaced:
        (answer,) = place_in_order(_state(), [gang], budget_s=1, clock_s=_clock, tree=tree).answers
        assert isinstance(answer, Unplaced)
        assert answer.reason is Reason.QUOTA_EXCEEDED
        return answer

    (change,) = refusal(_gang("a", 1, 0, 5)).changes
    assert (change.kind, change.replicas) == ("fewer_replicas", (("work", 3),))
    # Three GPUs are allowed, and two fit a rack.
    group = RoleGroup("work", 5, 5, Resources(1000), required="rack", selector={"r": ("r1",)})
    assert refusal(Gang("a", (group,))).changes[0].replicas == (("work", 2),)
    assert not refusal(_gang("a", 2, 0, 1), QueueTree((Queue("default", limit=Allowance(gpu_milli=1000)),))).changes
    firm = QueueTree((Queue("default", quota=Allowance(gpu_milli=2000)),))
    soft, fewer = refusal(_gang("a", 1, 0, 4, preemptible=False), firm).changes
    assert (soft.kind, soft.text) == ("preemptible", "preemptible: true, so that others may evict it")
    assert (fewer.kind, fewer.replicas) == ("fewer_replicas", (("work", 2),))
