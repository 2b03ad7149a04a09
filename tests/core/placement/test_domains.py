from __future__ import annotations

import pytest

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.domains import domains_of
from pointsman.core.placement.topology import Level, Topology
from support.racks import TOPOLOGY, node


def test_equal_rack_names_in_two_zones_are_two_racks() -> None:
    found = domains_of([node("a", "r", "x"), node("b", "r", "y"), node("c", "r", "x")], TOPOLOGY)
    assert found.of_node[1].tolist() == [0, 1, 0]
    assert found.distance(0, 2) == 1
    assert found.distance(0, 1) == 3
    assert found.distance(0, 0) == 0


def test_titles_tell_domains_of_equal_names_apart() -> None:
    found = domains_of([node("a", "r", "x"), node("b", "r", "y"), node("c", "q", "x")], TOPOLOGY)
    assert [found.title(1, rack) for rack in range(3)] == ["r (x)", "r (y)", "q"]
    assert [found.title(2, zone) for zone in range(2)] == ["x", "y"]
    assert found.title(3, 0) == "cluster"


def test_an_empty_label_is_no_domain() -> None:
    found = domains_of([node("a", ""), node("b", ""), node("c", "r0")], TOPOLOGY)
    assert found.of_node[1].tolist() == [0, 1, 2]
    assert found.is_real[1].tolist() == [False, False, True]
    assert found.of_node[2].tolist() == [0, 0, 0]
    assert found.distance(0, 1) == 2


def test_a_rack_outside_of_all_zones_stays_one_rack() -> None:
    found = domains_of([node("a", "r", ""), node("b", "r", ""), node("c", "q", "")], TOPOLOGY)
    assert found.of_node[1].tolist() == [0, 0, 1]
    assert found.of_node[2].tolist() == [0, 0, 1]
    assert found.is_real[2].tolist() == [False, False]


def test_costs_grow_tenfold_unless_told() -> None:
    assert TOPOLOGY.costs == (0, 1, 10)
    assert Topology((Level("rack", "rack", 3), Level("zone", "zone"))).costs == (0, 3, 30)
    assert TOPOLOGY.names == ("node", "rack", "zone")


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ((Level("rack", "a"), Level("rack", "b")), "two levels have the name 'rack'"),
        ((Level("rack", "a"), Level("zone", "a")), "two levels have the label 'a'"),
    ],
)
def test_levels_that_are_there_twice_are_refused(levels: tuple[Level, ...], told: str) -> None:
    with pytest.raises(PlacementError, match=told):
        Topology(levels)


def test_costs_that_could_not_be_added_up_are_refused() -> None:
    levels = tuple(Level(f"l{at}", f"l{at}") for at in range(12))
    assert Topology(levels[:11]).costs[-1] == 10**10
    with pytest.raises(PlacementError, match="level l11: one domain more would cost 100,000,000,000, at most"):
        Topology(levels)
    assert Topology((*levels[:11], Level("l11", "l11", 10**10))).costs[-1] == 10**10


def test_unknown_levels_are_named_with_those_there_are() -> None:
    with pytest.raises(PlacementError, match="level 'row' is not of this topology; one of node, rack, zone"):
        TOPOLOGY.index("row")
    with pytest.raises(PlacementError, match="always there"):
        Level("node", "kubernetes.io/hostname")
