from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Taint, Toleration
from pointsman.core.placement.gang import Gang, Near, RoleGroup
from pointsman.core.placement.plan import Gap, Optimal, Placement, Reason, Unplaced
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.solver import place
from support.racks import gpus, node, placed, racks, racks_of, refused, state, ticking


def _pd(prefill: int, decode: int, name: str = "pd", **how: object) -> Gang:
    roles = (RoleGroup("prefill", prefill, prefill, gpus(8)), RoleGroup("decode", decode, decode, gpus(8)))
    return Gang(name, roles, **how)  # type: ignore[arg-type]


def test_two_deployments_that_do_not_fit_together_one_is_whole_and_the_other_holds_nothing() -> None:
    here = racks(4, 4)
    here = here.hold(placed(here, _pd(3, 3, "first")))
    found = refused(here, _pd(3, 3, "second"))
    assert found.reason is Reason.INSUFFICIENT_CAPACITY
    assert here.placements["first"].is_whole
    assert int(here.whole_free.sum()) == 16


def test_an_earlier_choice_is_opened_again_when_a_sibling_does_not_fit() -> None:
    """Prefill alone would take the small rack; with decode beside it only the large one will do."""
    here = racks(2, 5)
    gang = _pd(2, 3, near=(Near(("prefill", "decode"), "rack"),))
    found = placed(here, gang)
    assert set(racks_of(here, found, "prefill") + racks_of(here, found, "decode")) == {"r1"}
    assert found.cost == 0


def test_few_racks_near_each_other_are_preferred_to_many() -> None:
    here = racks(1, 2, 1, 2, zones=2)
    found = placed(here, Gang("g", (RoleGroup("w", 4, 4, gpus(8)),)))
    assert set(racks_of(here, found, "w")) == {"r1", "r3"}
    assert found.statement == Optimal()
    assert [(level.level, level.domains) for level in found.spread] == [("node", 4), ("rack", 2), ("zone", 1)]
    assert found.cost == 1


def test_the_tightest_rack_that_fits_is_taken() -> None:
    here = racks(4, 2, 3)
    found = placed(here, Gang("g", (RoleGroup("w", 2, 2, gpus(8)),)))
    assert set(racks_of(here, found, "w")) == {"r1"}


def test_what_fits_on_one_node_is_not_split() -> None:
    here = state(node("small", gpus=3), node("fitting", gpus=4), node("large", gpus=8))
    gang = Gang("g", (RoleGroup("w", 4, 4, gpus(1)),))
    assert placed(here, gang).nodes == {"fitting"}


def test_fragments_are_used_before_whole_nodes() -> None:
    here = state(*(node(f"n{at}", gpus=8) for at in range(4)), used={"n0": 7, "n1": 6, "n2": 6})
    found = placed(here, Gang("g", (RoleGroup("w", 5, 5, gpus(1)),)))
    assert found.nodes == {"n3"}  # all on one node
    many = placed(here, Gang("g", (RoleGroup("w", 9, 9, gpus(1)),)))
    assert sum(pod.node == "n3" for pod in many.pods) == 4


def test_a_preference_that_can_not_be_met_does_not_stop_the_gang() -> None:
    here = racks(2, 2)
    found = placed(here, _pd(2, 1, preferred="rack"))
    assert found.is_whole
    assert found.cost == 101  # a rack more, and the preference


def test_a_preference_reaches_the_first_pod_too() -> None:
    here = racks(1, 2)
    gang = Gang("g", (RoleGroup("w", 2, 2, gpus(8), preferred="rack"),))
    assert set(racks_of(here, placed(here, gang), "w")) == {"r1"}


def test_replicas_over_several_nodes_stay_in_a_rack_each() -> None:
    here = racks(3, 3)
    gang = Gang("g", (RoleGroup("w", 2, 2, gpus(8), pods_per_replica=2, replica_required="rack"),))
    found = placed(here, gang)
    for replica in (0, 1):
        pods = [pod for pod in found.pods if pod.replica == replica]
        assert [pod.pod for pod in pods] == [0, 1]
        assert len({here.nodes[here.row(pod.node)].labels["rack"] for pod in pods}) == 1
    told = refused(here, Gang("g", (RoleGroup("w", 3, 3, gpus(8), pods_per_replica=2, replica_required="rack"),)))
    assert told.reason is Reason.TOPOLOGY_UNSATISFIED


def test_replicas_of_one_pod_go_to_no_node_outside_of_all_racks() -> None:
    here = state(node("outside", rack="", zone=""), node("inside"))
    role = RoleGroup("w", 1, 2, gpus(8), replica_required="rack")
    found = placed(here, Gang("g", (role,)))
    assert (found.nodes, found.replicas) == ({"inside"}, {"w": 1})
    told = refused(here, Gang("g", (replace(role, min_replicas=2),)))
    assert (told.reason, told.constraint) == (Reason.TOPOLOGY_UNSATISFIED, "w.replica_required")


def test_whole_replicas_that_are_only_preferred_are_given_up_at_a_price() -> None:
    here = racks(3, 3)
    role = RoleGroup("w", 3, 3, gpus(8), pods_per_replica=2, replica_preferred="rack")
    found = placed(here, Gang("g", (role,)))
    assert found.cost == 101


def test_pods_with_shares_fill_devices_and_not_their_sum() -> None:
    """Two devices of which 0.4 is free are no place for 0.6."""
    here = state(node("a", gpus=2), used={"a": 0.6}).hold(
        placed(state(node("a", gpus=2), used={"a": 0.6}), Gang("x", (RoleGroup("w", 1, 1, gpus(0.6)),)))
    )
    assert here.gpu_free_milli.tolist() == [800]
    assert refused(here, Gang("y", (RoleGroup("w", 1, 1, gpus(0.6)),))).reason is Reason.INSUFFICIENT_CAPACITY
    two = placed(here, Gang("y", (RoleGroup("w", 2, 2, gpus(0.4)),)))
    assert sorted(pod.devices for pod in two.pods) == [(0,), (1,)]


def test_shares_break_no_more_devices_than_they_must() -> None:
    here = state(node("a", gpus=4))
    gang = Gang("g", (RoleGroup("s", 4, 4, gpus(0.5)), RoleGroup("w", 2, 2, gpus(1))))
    assert placed(here, gang).is_whole


def test_cpu_and_memory_count_too() -> None:
    here = state(node("a"), node("b"))
    gang = Gang("g", (RoleGroup("w", 3, 3, Resources(1000, 40_000)),))
    assert refused(here, gang).reason is Reason.INSUFFICIENT_CAPACITY


def test_taints_selectors_kinds_and_cordons_keep_pods_away() -> None:
    here = state(
        node("tainted", taints=(Taint("gpu"),)), node("cordoned", cordoned=True), node("down", ready=False), node("ok")
    )
    role = RoleGroup("w", 1, 1, gpus(8))
    assert placed(here, Gang("g", (role,))).nodes == {"ok"}
    tolerant = RoleGroup("w", 2, 2, gpus(8), tolerations=(Toleration("gpu", exists=True),))
    assert placed(here, Gang("g", (tolerant,))).nodes == {"ok", "tainted"}
    selective = RoleGroup("w", 1, 1, gpus(8), selector={"pool": ("a",)})
    assert refused(here, Gang("g", (selective,))).reason is Reason.NODE_UNFIT
    other = RoleGroup("w", 1, 1, gpus(8), gpu_kinds=("b200",))
    assert refused(here, Gang("g", (other,))).reason is Reason.NODE_UNFIT


def test_elastic_replicas_stay_in_the_required_rack_and_pick_one_with_room_for_them() -> None:
    here = racks(2, 3, 6)
    role = RoleGroup("w", 2, 5, gpus(8), required="rack")
    found = placed(here, Gang("g", (role,)))
    assert set(racks_of(here, found, "w")) == {"r2"}
    assert found.replicas == {"w": 5}
    wide = placed(here, Gang("g", (RoleGroup("w", 2, 20, gpus(8), required="rack"),)))
    assert wide.replicas == {"w": 6}


def test_elastic_replicas_of_a_preference_spill() -> None:
    here = racks(2, 3)
    found = placed(here, Gang("g", (RoleGroup("w", 2, 9, gpus(8), preferred="rack"),)))
    assert found.replicas == {"w": 5}
    assert found.cost == 0


def test_elastic_replicas_of_roles_keep_step() -> None:
    here = racks(6)
    gang = Gang("g", (RoleGroup("prefill", 1, 4, gpus(8)), RoleGroup("decode", 1, 4, gpus(8))))
    assert placed(here, gang).replicas == {"prefill": 3, "decode": 3}


def test_a_repaired_gang_stays_in_its_rack() -> None:
    here = racks(3, 4)
    gang = _pd(1, 2, required="rack")
    before = placed(here, gang)
    lost = next(pod.node for pod in before.pods if pod.role == "decode")
    rack = racks_of(here, before, "prefill")[0]
    broken = here.hold(before).with_ready([lost], False)
    kept = before.without_nodes([lost])
    if rack == "r0":  # no node is left there
        told = refused(broken, gang, kept=kept)
        assert told.reason is Reason.TOPOLOGY_UNSATISFIED
    spare = here.hold(before)
    again = placed(spare, gang, kept=kept)
    assert again.is_whole
    assert set(racks_of(here, again, "decode")) == {rack}


def test_a_gang_that_is_placed_is_not_placed_again_by_mistake() -> None:
    here = racks(4)
    here = here.hold(placed(here, _pd(1, 1)))
    with pytest.raises(PlacementError, match="placed already; pass `kept`"):
        place(here, _pd(1, 1), budget_s=1, clock_s=ticking())


def test_a_level_that_the_topology_lacks_is_named() -> None:
    with pytest.raises(PlacementError, match=r"gang g, w\.required: level 'row' is not of this topology"):
        place(racks(1), Gang("g", (RoleGroup("w", 1, 1, required="row"),)), budget_s=1, clock_s=ticking())


def test_a_level_without_labels_holds_nothing_that_requires_it() -> None:
    here = state(node("a", rack=""), node("b", rack=""))
    told = refused(here, Gang("g", (RoleGroup("w", 1, 1, gpus(8), required="rack"),)))
    assert told.reason is Reason.TOPOLOGY_UNSATISFIED
    assert "No node is in a domain of level rack" in told.text


def test_no_time_is_told_and_not_taken_for_a_proof() -> None:
    found = place(racks(4), _pd(1, 1), budget_s=0.5, clock_s=ticking(1.0))
    assert isinstance(found, Unplaced)
    assert not found.proved
    assert "Time ran out" in found.text


def test_with_little_time_the_gap_is_told() -> None:
    here = state(*(node(f"n{at}", f"r{at // 3}", f"z{at // 9}", gpus=1 + at % 5) for at in range(18)))
    sizes = (("a", 1), ("b", 1), ("c", 2))
    roles = tuple(RoleGroup(name, 7, 7, gpus(size), preferred="rack") for name, size in sizes)
    statements = set()
    for budget in range(20, 240, 10):
        found = place(here, Gang("g", roles), budget_s=budget, clock_s=ticking(1.0), explained=False)
        if isinstance(found, Placement):
            assert found.bound <= found.cost
            statements.add(type(found.statement))
            if isinstance(found.statement, Gap):
                assert found.statement.cost == found.cost - found.bound
                assert str(found.statement) == f"gap <= {found.statement.cost}"
    assert statements == {Gap, Optimal}


def test_the_same_question_has_the_same_answer() -> None:
    here = racks(3, 3, 2, zones=2)
    gang = _pd(2, 3, preferred="rack")
    assert placed(here, gang).pods == placed(here, gang).pods


def test_an_empty_cluster_is_no_place() -> None:
    assert refused(state(), _pd(1, 1)).reason is Reason.NODE_UNFIT


def test_a_gang_of_elastic_replicas_only_is_whole_with_none() -> None:
    here = state(node("a", gpus=1))
    found = placed(here, Gang("g", (RoleGroup("w", 0, 2, gpus(8)),)))
    assert found.pods == ()
    assert found.is_whole
    assert placed(racks(1), Gang("g", (RoleGroup("w", 0, 2, gpus(8)),))).replicas == {"w": 1}
