from __future__ import annotations

import numpy as np
import pytest

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from support.racks import TOPOLOGY, gpus, node, placed, racks, state


def _gang(count: int = 1, size: float = 8, name: str = "gang") -> Gang:
    return Gang(name, (RoleGroup("worker", count, count, gpus(size, 1000)),))


def test_holding_and_releasing_gives_back_what_was_free() -> None:
    empty = racks(2, 2)
    held = empty.hold(placed(empty, _gang(3)))
    assert held.whole_free.sum() == 8
    assert empty.whole_free.sum() == 32
    back = held.release("gang")
    assert np.array_equal(back.device_free_milli, empty.device_free_milli)
    assert np.array_equal(back.cpu_free_milli, empty.cpu_free_milli)
    assert not back.placements


def test_the_same_gpu_is_never_given_twice() -> None:
    here = state(node("a"))
    plan = placed(here, _gang())
    held = here.hold(plan)
    with pytest.raises(PlacementError, match="placed already"):
        held.hold(plan)
    twin = Placement(_gang(name="twin"), plan.pods)
    with pytest.raises(PlacementError, match="gang twin: node a has not enough free"):
        held.hold(twin)


def test_a_placement_with_other_devices_than_its_pods_ask_for_is_refused() -> None:
    here = state(node("a"))
    pods = (PodPlace("worker", 0, 0, "a", (0, 1)),)
    with pytest.raises(PlacementError, match="8 devices of node a are expected"):
        here.hold(Placement(_gang(), pods))
    with pytest.raises(PlacementError, match="node b is not of this cluster"):
        here.hold(Placement(_gang(), (PodPlace("worker", 0, 0, "b", (0,)),)))


def test_pods_of_others_take_the_fullest_device_that_fits() -> None:
    pods = tuple(ForeignPod(f"p{at}", "x", "a", Resources(milli)) for at, milli in enumerate((500, 300, 400, 2000)))
    here = ClusterState.of(Cluster((node("a", gpus=4),), pods), TOPOLOGY)
    assert here.device_free_milli.tolist() == [[0, 0, 100, 700]]
    assert not here.overcommitted


def test_devices_that_are_known_are_taken_first() -> None:
    pods = (ForeignPod("any", "x", "a", Resources(1000)), ForeignPod("first", "x", "a", Resources(1000), (0,)))
    here = ClusterState.of(Cluster((node("a", gpus=2),), pods), TOPOLOGY)
    assert here.device_free_milli.tolist() == [[0, 0]]


def test_more_use_than_there_is_leaves_nothing_and_is_told() -> None:
    pods = (ForeignPod("p", "x", "a", Resources(3000, 100_000, 1)),)
    here = ClusterState.of(Cluster((node("a", gpus=2), node("b")), pods), TOPOLOGY)
    assert here.overcommitted == ("a",)
    assert here.device_free_milli[0].tolist()[:2] == [0, 0]
    assert here.cpu_free_milli[0] == 0


def test_a_node_that_failed_takes_nothing_until_it_is_back() -> None:
    here = state(node("a"), node("b", cordoned=True)).with_ready(["a"], False)
    assert here.up.tolist() == [False, False]
    assert here.with_ready(["a", "b"], True).up.tolist() == [True, False]


def test_gangs_on_lost_nodes_are_named() -> None:
    here = racks(2, 1)
    here = here.hold(placed(here, _gang(1, name="one")))
    here = here.hold(placed(here, _gang(1, name="two")))
    lost = here.placements["one"].nodes
    assert here.hit(lost) == ("one",)


def test_replicas_that_are_given_up_together_are_as_those_given_up_one_by_one() -> None:
    here = racks(2, 4)
    part = Gang("part", (RoleGroup("a", 1, 4, gpus(0.5, 500)), RoleGroup("b", 1, 2, gpus(2), pods_per_replica=2)))
    for gang in (part, _gang(2, name="whole"), _gang(1, name="stays")):
        here = here.hold(placed(here, gang))
    some = {("a", 1), ("a", 3), ("b", 1)}
    left = here.without({"part": some, "whole": None})
    slowly = here.exchange(here.placements["part"].without(some)).release("whole")
    assert left.placements == slowly.placements
    assert left.placements["part"].replicas == {"a": 2, "b": 1}
    for name in ("device_free_milli", "cpu_free_milli", "memory_free_bytes"):
        assert np.array_equal(getattr(left, name), getattr(slowly, name))
    assert (
        "part"
        not in here.without({"part": {(pod.role, pod.replica) for pod in here.placements["part"].pods}}).placements
    )
    with pytest.raises(PlacementError, match="gang other is not placed"):
        here.without({"other": None})


def test_clusters_that_cannot_be_are_refused() -> None:
    with pytest.raises(PlacementError, match="node a is there twice"):
        Cluster((node("a"), node("a")))
    with pytest.raises(PlacementError, match="pod x/p is on node b, which the cluster lacks"):
        Cluster((node("a"),), (ForeignPod("p", "x", "b", gpus(1)),))
    with pytest.raises(PlacementError, match="a part of one device or whole devices"):
        ForeignPod("p", "x", "a", gpus(1.5))
    with pytest.raises(PlacementError, match="gpus is -1"):
        Node("a", -1)


def test_parts_of_others_that_fit_are_not_too_much_for_their_order() -> None:
    parts = tuple(ForeignPod(f"p{at}", "d", "a", Resources(milli)) for at, milli in enumerate((500, 300, 500, 700)))
    here = ClusterState.of(Cluster((Node("a", 3),), (*parts, ForeignPod("whole", "d", "a", Resources(1000)))), TOPOLOGY)
    assert here.overcommitted == ()
    assert here.gpu_free_milli.tolist() == [0]
