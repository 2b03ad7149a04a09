"""What is told of gangs that are not placed, each change carried out and solved again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from harness.placement_cases import random_gang, random_state
from harness.placement_oracle import least_cost
from pointsman.core.placement.cluster import Taint
from pointsman.core.placement.gang import Gang, Near, RoleGroup
from pointsman.core.placement.plan import Change, Placement, Reason
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.solver import place
from support.racks import gpus, node, placed, racks, refused, state, ticking


def _workers(count: int, name: str = "g", **how: object) -> Gang:
    return Gang(name, (RoleGroup("w", count, count, gpus(8), **how),))  # type: ignore[arg-type]


def test_too_few_gpus_tells_how_many_replicas_are_missing() -> None:
    found = refused(racks(2, 2), _workers(6))
    assert found.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.text == "The cluster has not enough free: 2 of 6 w (16 GPUs)."
    assert (found.missing[0].fits_replicas, found.missing[0].lacks) == (4, Resources(16_000))
    assert [change.text for change in found.changes] == ["w: 4 instead of 6 replicas"]
    assert found.changes[0].replicas == (("w", 4),)


def test_a_rack_that_is_too_small_tells_the_nearest_one_and_what_is_missing_there() -> None:
    found = refused(racks(2, 3, 1), _workers(4, required="rack"))
    assert found.reason is Reason.TOPOLOGY_UNSATISFIED
    assert found.constraint == "w.required"
    assert found.tightest is not None
    assert (found.tightest.level, found.tightest.domain) == ("rack", "r1")
    assert [(each.role, each.fits_replicas, each.wanted_replicas) for each in found.tightest.missing] == [("w", 3, 4)]
    assert "nearest is r1, which lacks room for 1 of 4 w (8 GPUs)" in found.text
    assert [change.kind for change in found.changes] == ["looser_level", "fewer_replicas"]
    assert found.changes[0].level == "zone"
    assert found.changes[1].replicas == (("w", 3),)


def test_constraints_that_only_together_can_not_be_met() -> None:
    """Each role has a rack that it must be in, and they are different ones."""
    pools = [{"rack": f"r{at}", "zone": "z0", "pool": pool} for at, pool in enumerate("ab")]
    nodes = [replace(node(labels["pool"]), labels=labels) for labels in pools]
    roles = tuple(RoleGroup(name, 1, 1, gpus(1), selector={"pool": (name,)}) for name in "ab")
    found = refused(state(*nodes), Gang("g", roles, near=(Near(("a", "b"), "rack"),)))
    assert found.reason is Reason.TOPOLOGY_UNSATISFIED
    assert found.constraint == "near a, b"
    assert [change.level for change in found.changes] == ["zone"]


def test_a_replica_that_is_larger_than_every_rack() -> None:
    found = refused(racks(2, 3, 3), _workers(1, pods_per_replica=4, replica_required="rack"))
    assert found.constraint == "w.replica_required"
    assert found.text.startswith("Each replica does not fit into one rack")
    assert found.tightest is not None
    assert found.tightest.missing[0].lacks == Resources(8000)


def test_nodes_that_will_not_do_are_counted_by_why() -> None:
    here = state(node("a", taints=(Taint("x"),)), node("b", gpus=4), node("c", gpus=4))
    found = refused(here, _workers(1))
    assert found.reason is Reason.NODE_UNFIT
    assert found.unfit == (("w", "fewer than 8 GPUs", 2), ("w", "taint x:NoSchedule", 1))
    down = refused(state(node("a", ready=False), node("b", cordoned=True)), _workers(1))
    assert down.reason is Reason.NODE_UNFIT
    assert down.unfit == (("w", "not ready", 1), ("w", "cordoned", 1))


def test_a_gang_that_could_move_is_named() -> None:
    here = racks(2, 3)
    here = here.hold(placed(here, _workers(1, "small", selector={"rack": ("r1",)})))
    small = replace(here.placements["small"], gang=_workers(1, "small"))
    here = here.exchange(small)
    found = refused(here, _workers(3, required="rack"))
    assert found.changes[0] == Change("move_gang", "move gang small: it fits elsewhere", gang="small")


def test_a_gang_that_would_fit_only_with_fewer_replicas_is_not_said_to_move() -> None:
    here = racks(3)
    elastic = Gang("elastic", (RoleGroup("w", 1, 9, gpus(8)),))
    here = here.hold(placed(here, elastic))
    change = refused(here, _workers(1)).changes[0]
    assert change == Change(
        "shrink_gang", "take elastic replicas from gang elastic: its floors still fit", gang="elastic"
    )


def test_a_gang_that_would_have_to_go_is_named_last_and_only_if_it_is_less_important() -> None:
    here = racks(2)
    here = here.hold(placed(here, _workers(1, "other")))
    assert [change.kind for change in refused(here, _workers(2)).changes] == ["fewer_replicas"]
    important = replace(_workers(2), priority=1)
    assert [change.kind for change in refused(here, important).changes] == ["fewer_replicas", "evict_gang"]
    here = here.exchange(replace(here.placements["other"], gang=replace(_workers(1, "other"), preemptible=False)))
    assert [change.kind for change in refused(here, important).changes] == ["fewer_replicas"]


@pytest.mark.parametrize("block", range(2))
def test_every_change_makes_it_fit_and_no_smaller_one_of_its_kind_would(block: int) -> None:
    tried = 0
    for seed in range(block * 100, (block + 1) * 100):
        rng = random.Random(seed)
        here = random_state(rng)
        for number in range(3):
            found = place(here, random_gang(rng, here, f"h{number}", 2), budget_s=60, clock_s=ticking())
            if isinstance(found, Placement) and found.pods:
                here = here.hold(found)
        gang = replace(random_gang(rng, here), priority=1)
        told = place(here, gang, budget_s=60, clock_s=ticking(), elastic=False)
        if isinstance(told, Placement):
            continue
        for change in told.changes:
            tried += 1
            if change.kind in ("move_gang", "shrink_gang", "evict_gang"):
                assert least_cost(here.release(change.gang), gang) is not None, f"seed {seed}"
            elif change.kind == "fewer_replicas":
                fewer = _with_floors(gang, dict(change.replicas))
                assert least_cost(here, fewer) is not None, f"seed {seed}"
                for role, floor in change.replicas:
                    assert least_cost(here, _with_floors(fewer, {role: floor + 1})) is None, f"seed {seed}: {role}"
            elif change.kind == "looser_level" and "," not in change.constraint.removeprefix("near "):
                looser = _loosened(gang, change.constraint, change.level)
                assert least_cost(here, looser) is not None, f"seed {seed}"
    assert tried > 20


def _with_floors(gang: Gang, floors: dict[str, int]) -> Gang:
    groups = tuple(
        replace(group, min_replicas=floors.get(group.name, group.min_replicas), max_replicas=99)
        for group in gang.groups
    )
    return replace(gang, groups=groups)


def _loosened(gang: Gang, origin: str, level: str | None) -> Gang:
    if origin == "required":
        return replace(gang, required=level)
    if origin.startswith("near"):
        return replace(gang, near=tuple(replace(each, level=level) for each in gang.near) if level else ())
    role, field = origin.split(".")
    groups = (replace(group, **{field: level}) if group.name == role else group for group in gang.groups)
    return replace(gang, groups=tuple(groups))


def test_nodes_that_are_large_enough_and_left_out_all_the_same_are_told() -> None:
    taint = Taint("team", "a")
    # Kubernetes taints what is cordoned or down by itself; people are told that it is cordoned or down.
    cordoned = node("c", cordoned=True, taints=(Taint("node.kubernetes.io/unschedulable"),))
    down = node("d", ready=False, taints=(Taint("node.kubernetes.io/unreachable", effect="NoExecute"),))
    where = state(
        node("a"), node("t1", taints=(taint,)), node("t2", taints=(taint,)), cordoned, down, node("cpu", gpus=0)
    )
    found = refused(where, _workers(2))
    assert found.reason is Reason.INSUFFICIENT_CAPACITY
    assert found.unfit == (("w", "taint team=a:NoSchedule", 2), ("w", "not ready", 1), ("w", "cordoned", 1))
    assert not refused(racks(2), _workers(3)).unfit
    alone = refused(state(cordoned, down), _workers(1))
    assert alone.reason is Reason.NODE_UNFIT
    assert alone.unfit == (("w", "not ready", 1), ("w", "cordoned", 1))
