"""The placing peers: what each does by its rule, and the deadlock that whole gangs do not have."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.gangs import TOPOLOGY, empty, faults, gang, pair, still

from peers_placement.kai_like import KaiLike
from peers_placement.pod_by_pod import PodByPod
from pointsman.app.placements.simulation.demand import Demand, Job, made_jobs, usual_kinds
from pointsman.app.placements.simulation.outages import Outage, Outages, made_outages
from pointsman.app.placements.simulation.outcome import Outcome
from pointsman.app.placements.simulation.run import Pace, run_cluster
from pointsman.app.placements.simulation.scheduler import GangScheduler, Look, Scheduler
from pointsman.core.placement.cluster import Cluster, Node
from pointsman.core.placement.gang import Gang, RoleGroup
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.topology import Level, Topology


def cluster(nodes: int) -> Cluster:
    made = (
        Node(f"n{at}", 8, "H100", 200_000, 2**42, {"rack": f"r{at // 4}", "zone": f"z{at // 8}"}) for at in range(nodes)
    )
    return Cluster(tuple(made))


def two_deployments(scheduler: Scheduler) -> Outcome:
    """Each of 28 nodes, on 32: prefill 14, decode 14. Each fits alone, both together do not."""
    jobs = [Job(pair(name, 14, 14), 3_600) for name in ("a", "b")]
    return run_cluster(cluster(32), TOPOLOGY, jobs, (), scheduler, 40_000, pace=Pace(look_again_s=5_000))


def test_of_two_deployments_that_do_not_fit_together_ours_runs_one_and_then_the_other() -> None:
    found = two_deployments(GangScheduler())
    assert (found.finished, found.stuck, found.partial_gang_s) == (2, 0, 0)


@pytest.mark.parametrize("scheduler", [PodByPod(), PodByPod(packed=False), KaiLike(separate=True)])
def test_pods_or_roles_by_themselves_wait_for_each_other_for_ever(scheduler: Scheduler) -> None:
    found = two_deployments(scheduler)
    assert (found.placed, found.finished, found.stuck) == (0, 0, 2)
    assert found.partial_gang_s == 2 * 40_000
    # What they hold computes nothing, and nobody else can have it.
    assert found.partial_gpu_s >= 28 * 8 * 40_000


def test_one_greedy_gang_each_does_not_deadlock() -> None:
    found = two_deployments(KaiLike())
    assert (found.finished, found.stuck) == (2, 0)


def test_a_sibling_that_is_never_reopened_costs_a_placement() -> None:
    start = empty(2, gpus=8, per_rack=1)
    one = Gang("one", (RoleGroup("worker", 1, 1, Resources(4_000), selector={"rack": ("r0",)}),))
    start = start.hold(place(start, one, budget_s=1, clock_s=still))  # type: ignore[arg-type]
    # r0 has 4 free, r1 has 8. `any` fits both and is put where less is free; `there` fits only r0.
    picky = Gang(
        "picky",
        (
            RoleGroup("any", 1, 1, Resources(4_000), required="rack"),
            RoleGroup("there", 1, 1, Resources(4_000), selector={"rack": ("r0",)}, required="rack"),
        ),
    )
    look = Look(start, [picky], {"one": 0.0}, 10.0)
    assert "picky" not in KaiLike().look(look).state.placements
    found = GangScheduler().look(look).state
    assert "picky" in found.placements
    assert not faults(found, empty(2, gpus=8, per_rack=1))


def labelled(*racks: str | None) -> ClusterState:
    """A node of 8 GPUs for each, in that rack; None: the node does not say in which."""
    nodes = (Node(f"n{at}", 8, labels={"rack": rack} if rack else {}) for at, rack in enumerate(racks))
    return ClusterState.of(Cluster(tuple(nodes)), Topology((Level("rack", "rack"),)))


@pytest.mark.parametrize("pods", [1, 2])
@pytest.mark.parametrize("field", ["replica_required", "required"])
def test_a_node_without_the_label_is_in_no_domain(field: str, pods: int) -> None:
    # The node without a rack is the fullest, so the greedy order would take it first.
    start = labelled(None, "a", "a")
    other = Gang("other", (RoleGroup("x", 1, 1, Resources(4_000)),))
    start = start.hold(Placement(other, (PodPlace("x", 0, 0, "n0", (0, 1, 2, 3)),)))
    group = RoleGroup("w", 1, 1, Resources(2_000), pods_per_replica=pods, **{field: "rack"})  # type: ignore[arg-type]
    for scheduler in (KaiLike(), GangScheduler()):
        found = scheduler.look(Look(start, [Gang("g", (group,))], {"other": 0.0}, 10.0)).state.placements["g"]
        assert found.nodes <= {"n1", "n2"}
    lost = labelled(None, None)
    assert "g" not in KaiLike().look(Look(lost, [Gang("g", (group,))], {}, 10.0)).state.placements


def test_what_is_left_of_a_replica_decides_where_the_rest_goes() -> None:
    group = RoleGroup("w", 2, 2, Resources(8_000), pods_per_replica=2, replica_required="rack")
    start = labelled("a", "a", "a", "b", "b", "b")
    there = (PodPlace("w", 0, 1, "n0", tuple(range(8))), PodPlace("w", 1, 0, "n3", tuple(range(8))))
    start = start.hold(Placement(Gang("g", (group,)), there))
    found = KaiLike().look(Look(start, [Gang("g", (group,))], {"g": 0.0}, 10.0)).state.placements["g"]
    racks = {(pod.replica, "a" if pod.node in ("n0", "n1", "n2") else "b") for pod in found.pods}
    assert found.is_whole
    assert racks == {(0, "a"), (1, "b")}


def test_pods_that_choose_other_nodes_are_tried_each() -> None:
    start = empty(2, per_rack=1)
    start = start.hold(
        place(
            start,
            Gang("full", (RoleGroup("w", 1, 1, Resources(8_000), selector={"rack": ("r0",)}),)),
            budget_s=1,
            clock_s=still,
        )
    )  # type: ignore[arg-type]
    gangs = [
        Gang(f"to-{rack}", (RoleGroup("w", 1, 1, Resources(8_000), selector={"rack": (rack,)}),), submitted_at_s=at_s)
        for rack, at_s in (("r0", 0.0), ("r1", 100.0))
    ]
    assert "to-r1" in PodByPod().look(Look(start, gangs, {"full": 0.0}, 10.0)).state.placements


def test_pods_of_higher_priority_break_gangs_of_lower_priority() -> None:
    jobs = [Job(gang("low", 2), 3_600), Job(gang("high", 1, priority=5, submitted_at_s=100), 3_600)]
    found = run_cluster(cluster(2), TOPOLOGY, jobs, (), PodByPod(), 1_000)
    assert found.stuck == 1
    assert found.partial_gang_s == 900


@pytest.mark.parametrize("scheduler", [PodByPod(), KaiLike(), KaiLike(separate=True)], ids=["pods", "kai", "separate"])
def test_peers_keep_the_books_through_a_busy_day(scheduler: Scheduler) -> None:
    rng = np.random.default_rng(5)
    jobs = made_jobs(Demand(usual_kinds(TOPOLOGY, 8, elastic=False), load=1.4, hours=6, urgent_share=0.3), 16 * 8, rng)
    outages = made_outages(Outages(20, 0.5), [f"n{at}" for at in range(16)], 6 * 3_600, rng)
    found = run_cluster(cluster(16), TOPOLOGY, jobs, outages, scheduler, 6 * 3_600)
    assert found.placed > 5
    assert found.finished > 0
    assert isinstance(outages[0], Outage)
