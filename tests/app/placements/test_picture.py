from __future__ import annotations

import xml.etree.ElementTree as ET

from pointsman.app.placements.picture import MOST_BESIDE, MOST_NODES, Picture, Use, picture_of
from pointsman.app.placements.svg import svg_of
from pointsman.core.placement.cluster import Cluster, ForeignPod, Node
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology

TOPOLOGY = Topology((Level("rack", "r"),))


def _state(nodes: int = 4, a_rack: int = 2, pods: tuple[ForeignPod, ...] = ()) -> ClusterState:
    made = tuple(Node(f"n{i}", 2, cpu_milli=9000, labels={"r": f"r{i // a_rack}"}, ready=i != 3) for i in range(nodes))
    return ClusterState.of(Cluster(made, pods), TOPOLOGY)


def _gang(name: str, gpus: int = 1, priority: int = 0, replicas: int = 1) -> Gang:
    return Gang(name, (RoleGroup("work", replicas, replicas, Resources(1000 * gpus)),), priority=priority)


def _held(state: ClusterState, gang: Gang, *pods: PodPlace) -> tuple[ClusterState, Placement]:
    placement = Placement(gang, pods)
    return state.hold(placement), placement


def _clock() -> float:
    return 0.0


def _drawn() -> Picture:
    pods = (
        ForeignPod("whole", "d", "n1", Resources(1000), (0,)),
        ForeignPod("part", "d", "n1", Resources(300), (1,)),
    )
    groups = (
        RoleGroup("prefill", 1, 1, Resources(1000)),
        RoleGroup("proxy", 1, 1, Resources(0, 100)),
        RoleGroup("draft", 1, 1, Resources(500)),
    )
    places = (PodPlace("prefill", 0, 0, "n0", (1,)), PodPlace("proxy", 0, 0, "n0"), PodPlace("draft", 0, 0, "n2", (0,)))
    state, placement = _held(_state(pods=pods), Gang("<g>", groups), *places)
    return picture_of(state, [placement])


def test_every_gpu_is_drawn_once_for_what_it_is() -> None:
    picture = _drawn()
    assert [(rack.name, [node.name for node in rack.nodes]) for rack in picture.racks] == [
        ("r0", ["n0", "n1"]),
        ("r1", ["n2", "n3"]),
    ]
    n0, n1, n2, n3 = (node for rack in picture.racks for node in rack.nodes)
    assert [(cell.member, cell.part) for cell in n0.cells] == [(None, False), (0, False)]
    assert n0.beside == (1,)
    assert [cell.use for cell in n1.cells] == [Use.OTHERS, Use.PARTLY]
    assert [(cell.member, cell.part) for cell in n2.cells] == [(2, True), (None, False)]
    assert [cell.use for cell in n3.cells] == [Use.DOWN, Use.DOWN]
    assert [member.letter for member in picture.legend] == ["P", "A", "D"]
    assert picture.hidden == (0, 0)


def test_of_large_clusters_only_touched_racks_are_drawn() -> None:
    state, placement = _held(_state(MOST_NODES + 2), _gang("g"), PodPlace("work", 0, 0, "n4", (0,)))
    picture = picture_of(state, [placement])
    assert [rack.name for rack in picture.racks] == ["r2"]
    assert picture.hidden == (256, 512)


def test_without_levels_there_is_one_rack() -> None:
    state = ClusterState.of(Cluster((Node("a", 1), Node("b", 1))), Topology())
    (rack,) = picture_of(state, []).racks
    assert rack.name == "cluster"
    assert len(rack.nodes) == 2


def test_the_nearest_level_with_several_nodes_stands_for_racks() -> None:
    nodes = tuple(Node(f"n{i}", 1, labels={"s": f"s{i}", "b": f"b{i // 3}"}) for i in range(6))
    state = ClusterState.of(Cluster(nodes), Topology((Level("slot", "s"), Level("block", "b"))))
    picture = picture_of(state, [])
    assert (picture.level, len(picture.racks)) == ("block", 2)


def test_the_svg_is_well_formed_and_has_every_gpu() -> None:
    root = ET.fromstring(svg_of(_drawn(), 'a "title" <of> & more'))
    name = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{name}svg"
    assert root.get("aria-label") == 'a "title" <of> & more'
    titles = [each.text for each in root.iter(f"{name}title")]
    assert sorted(titles) == sorted(  # type: ignore[type-var]
        ["free"] * 2
        + ["of others", "partly of others"]
        + ["down or cordoned"] * 2
        + ["<g> prefill", "<g> proxy", "<g> draft"]
    )
    width, height = (float(root.get(side) or 0) for side in ("width", "height"))
    for each in root.iter(f"{name}rect"):
        assert 0 <= float(each.get("x") or 0) + float(each.get("width") or 0) <= width
        assert 0 <= float(each.get("y") or 0) + float(each.get("height") or 0) <= height


def test_nothing_placed_is_a_picture_too() -> None:
    ET.fromstring(svg_of(picture_of(_state(MOST_NODES + 2), []), "nothing"))


def test_racks_of_equal_names_are_told_apart_by_zone() -> None:
    levels = Topology((Level("rack", "r"), Level("zone", "z")))
    nodes = tuple(Node(f"n{zone}", 2, labels={"r": "r1", "z": zone}) for zone in "ab")
    drawn = picture_of(ClusterState.of(Cluster(nodes, ()), levels), ())
    assert [rack.name for rack in drawn.racks] == ["r1 (a)", "r1 (b)"]


def test_of_many_pods_without_a_gpu_a_number_is_drawn() -> None:
    pods = tuple(PodPlace("work", at, 0, "n0") for at in range(MOST_BESIDE + 5_000))
    state, placement = _held(_state(), _gang("g", 0, replicas=len(pods)), *pods)
    picture = picture_of(state, [placement])
    first = picture.racks[0].nodes[0]
    assert (first.beside, first.more) == ((0,) * MOST_BESIDE, 5_000)
    assert "+5,000<" in svg_of(picture, "many")
