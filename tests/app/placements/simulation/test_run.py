"""A cluster in virtual time: what is counted, and that ours never holds a part of a gang."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.support.gangs import TOPOLOGY, empty, gang, pair

from pointsman.app.placements.simulation.closeness import domains_used, handover_shares
from pointsman.app.placements.simulation.demand import Demand, Job, Kind, close_level, made_jobs, offered, usual_kinds
from pointsman.app.placements.simulation.outages import Outage, Outages, made_outages
from pointsman.app.placements.simulation.outcome import MEASURES, Outcome
from pointsman.app.placements.simulation.run import Pace, run_cluster
from pointsman.app.placements.simulation.scheduler import GangScheduler, Look
from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, Node
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.queues.books import Settings
from pointsman.core.placement.tables import BudgetSpentError, Limits
from pointsman.core.placement.topology import Level, Topology

PACE = Pace(startup_s=10, look_again_s=30)


def cluster(nodes: int) -> Cluster:
    """Of 8 GPUs each, four a rack; CPU and memory for all."""
    made = (
        Node(f"n{at}", 8, "H100", 200_000, 2**42, {"rack": f"r{at // 4}", "zone": f"z{at // 8}"}) for at in range(nodes)
    )
    return Cluster(tuple(made))


def run(nodes: int, *jobs: Job, outages: tuple[Outage, ...] = (), until_s: float = 1_000.0) -> Outcome:
    scheduler = GangScheduler(settings=Settings(consolidate=False))
    return run_cluster(cluster(nodes), TOPOLOGY, jobs, outages, scheduler, until_s, pace=PACE)


def test_gangs_run_for_their_time_and_the_next_one_gets_the_place() -> None:
    found = run(2, Job(gang("a", 2, submitted_at_s=100), 200), Job(gang("b", 2, submitted_at_s=150), 200))
    assert (found.gangs, found.placed, found.finished) == (2, 2, 2)
    assert found.waits_s == (0.0, 160.0)  # `a` is there from 100 to 310, start-up included
    assert found.whole_gpu_s == 16 * (210 + 210)
    assert found.up_gpu_s == 16 * 1_000
    assert found.metrics["whole_share"] == pytest.approx(0.42)
    assert found.partial_gang_s == 0


def test_who_never_gets_a_place_counts_as_waiting_until_the_end() -> None:
    found = run(1, Job(gang("a"), 5_000), Job(gang("b", submitted_at_s=100), 10))
    assert (found.placed, found.never, found.finished) == (1, 1, 0)
    assert found.waits_s == (0.0, 900.0)
    assert found.metrics["placed_share"] == 0.5


def test_a_gang_that_gave_way_has_the_rest_of_its_time_left() -> None:
    found = run(1, Job(gang("a"), 300), Job(gang("urgent", priority=1, submitted_at_s=110), 90))
    # `a` computes 100 s, waits for 100, starts again and computes the other 200: it ends at 420.
    assert found.finished == 2
    assert found.whole_gpu_s == 8 * 420
    assert found.preempted_gpu_s == 8 * 10
    assert found.metrics["evictions"] == 1


def test_start_up_that_was_cut_short_is_lost_in_part() -> None:
    found = run(1, Job(gang("a"), 300), Job(gang("urgent", priority=1, submitted_at_s=4), 90))
    assert found.preempted_gpu_s == 8 * 4


def test_a_failed_node_is_replaced_at_once_and_its_gpus_count_again_when_it_is_back() -> None:
    found = run(3, Job(gang("a", 2), 400), outages=(Outage("n0", 110, 310), Outage("n1", 110, 310)), until_s=600)
    # Of the three nodes one is left: `a` waits until both are back.
    assert found.finished == 0 or found.partial_gang_s == 0
    assert found.up_gpu_s == 8 * (3 * 600 - 2 * 200)
    assert found.metrics["evictions"] == 1
    repaired = run(3, Job(gang("a", 2), 400), outages=(Outage("n0", 110, 310),), until_s=600)
    assert repaired.metrics["evictions"] == 0
    assert repaired.partial_gang_s == 0


def test_free_gpus_of_used_nodes_count_as_pieces() -> None:
    found = run(2, Job(gang("a", gpus=2), 10_000), until_s=100)
    assert found.broken_free_gpu_s == 6 * 100
    assert found.metrics["broken_share"] == pytest.approx(6 / 14)


def test_closeness_counts_pairs_by_their_nearest_common_domain() -> None:
    state = empty(12)
    pods = (
        PodPlace("prefill", 0, 0, "n0"),
        PodPlace("prefill", 1, 0, "n4"),
        PodPlace("decode", 0, 0, "n0"),
        PodPlace("decode", 1, 0, "n1"),
        PodPlace("decode", 2, 0, "n8"),
    )
    placement = Placement(pair("a", 2, 3), pods)
    # From n0: node, rack, beyond the zone; from n4: zone twice, beyond once.
    assert handover_shares(state, placement) == pytest.approx((1 / 6, 1 / 6, 2 / 6, 2 / 6))
    assert domains_used(state, placement, "rack") == 3
    assert handover_shares(state, Placement(gang("b"), ())) is None


def test_demand_comes_at_the_load_that_is_asked_for_and_from_its_seed() -> None:
    demand = Demand(usual_kinds(TOPOLOGY, 8), load=0.8, hours=400)
    jobs = made_jobs(demand, 800, np.random.default_rng(3))
    assert offered(jobs) / (400 * 800) == pytest.approx(0.8, rel=0.1)
    assert jobs == made_jobs(demand, 800, np.random.default_rng(3))
    assert jobs != made_jobs(demand, 800, np.random.default_rng(4))
    assert [job.gang.submitted_at_s for job in jobs] == sorted(job.gang.submitted_at_s for job in jobs)
    # Short runs are none below ten minutes, and still ask for the load.
    kinds = tuple(replace(kind, runs_h=0.2) for kind in usual_kinds(TOPOLOGY, 8))
    short = Demand(kinds, load=0.8, hours=400)
    jobs = made_jobs(short, 800, np.random.default_rng(3))
    assert offered(jobs) / (400 * 800) == pytest.approx(0.8, rel=0.03)
    assert len(jobs) == pytest.approx(short.expected(800), rel=0.03)
    assert min(job.runs_s for job in jobs) >= 600
    outages = made_outages(Outages(100, 2), [f"n{at}" for at in range(50)], 1_000 * 3_600, np.random.default_rng(1))
    assert len(outages) == pytest.approx(50 * 1_000 / 102, rel=0.15)
    assert Outages(100, 2).expected(50, 1_000) == pytest.approx(50 * 1_000 / 102)
    # Repairs shorter than the clock can tell are still after the failure: such a node is not lost for ever.
    quick = made_outages(Outages(1, 1e-300), ["n0"], 10 * 3_600, np.random.default_rng(1))
    assert quick
    assert all(outage.back_s > outage.at_s for outage in quick)
    assert not made_outages(Outages(0), ["n0"], 1e9, np.random.default_rng(1))


def test_gangs_wait_in_the_queue_of_their_kind_with_its_priority_unless_they_are_urgent() -> None:
    kinds = (
        Kind(gang("named", priority=4), 1.0, queue="b"),
        Kind(gang("above", priority=20), 1.0, queue="c"),
        Kind(gang("any"), 1.0),
    )
    demand = Demand(kinds, load=1, hours=100, queues=("a", "b", "c"), urgent_share=0.5)
    jobs = made_jobs(demand, 80, np.random.default_rng(1))
    seen: dict[str, set[tuple[str, int]]] = {}
    for job in jobs:
        seen.setdefault(job.gang.name.partition("-")[0], set()).add((job.gang.queue, job.gang.priority))
    assert seen["named"] == {("b", 4), ("b", 10)}
    assert seen["above"] == {("c", 20)}
    assert seen["any"] == {(queue, priority) for queue in "abc" for priority in (0, 10)}


def test_kinds_go_by_the_levels_there_are() -> None:
    assert close_level(TOPOLOGY) == "rack"
    assert close_level(Topology(())) is None
    assert close_level(Topology((Level("block", "b"), Level("zone", "z")))) == "block"
    for topology in (TOPOLOGY, Topology(())):
        for kind in usual_kinds(topology, 8):
            assert {scope.level for scope in kind.gang.scopes()} <= set(topology.names)
    assert all(
        group.max_replicas == group.min_replicas
        for kind in usual_kinds(TOPOLOGY, 8, elastic=False)
        for group in kind.gang.groups
    )


def test_what_can_not_be_is_refused() -> None:
    kind = Kind(gang("a"), 1)
    for bad, words in (
        (lambda: Demand(()), "no kind of gang would ever come"),
        (lambda: Demand((kind,), load=0), "load is 0"),
        (lambda: Demand((kind,), urgent_share=2), "urgent_share is 2"),
        (lambda: Demand((kind,), queues=()), "at least one is expected"),
        (lambda: Demand((Kind(gang("cpu", gpus=0), 1),)).gangs_per_hour(8), "no kind of gang asks for GPUs"),
        (lambda: Demand((Kind(gang("a"), 1),)).gangs_per_hour(0), "the cluster has no GPUs"),
        (lambda: Demand((kind,), hours=math.inf), "hours is inf"),
        (lambda: Kind(gang("a"), math.nan), "weight is nan"),
        (lambda: Kind(gang("a"), 1, 0.1), "runs_h is 0.1; ten minutes or more"),
        (lambda: Kind(gang("a"), 1, math.inf), "runs_h is inf"),
        (lambda: Outages(-1), "node_fails_every_h is -1"),
        (lambda: Outages(repair_h=0), "repair_h is 0"),
        (lambda: Pace(startup_s=math.inf), "startup_s is inf"),
        (lambda: run(1, Job(gang("a"), math.nan)), "gang a comes or runs for no time that can be"),
        (lambda: run(1, until_s=math.inf), "until_s is inf"),
        (lambda: run(1, outages=(Outage("n0", 2, 2),)), "node n0 is back at 2 s, and fails at 2 s"),
        (lambda: Pace(look_again_s=0), "look_again_s is 0"),
        (lambda: run(1, Job(gang("a"), 1), Job(gang("a"), 1)), "gang a comes twice"),
        (lambda: run(1, outages=(Outage("x", 1, 2),)), "node x is not of this cluster"),
    ):
        with pytest.raises(PlacementError, match=words):
            bad()


def test_all_measures_are_there() -> None:
    found = run(1, until_s=10)
    assert set(found.metrics) == set(MEASURES)
    assert math.isnan(found.metrics["placed_share"])


@pytest.mark.parametrize("seed", [1, 2])
def test_no_gang_is_ever_held_in_part_and_runs_repeat_themselves(seed: int) -> None:
    rng = np.random.default_rng(seed)
    small = [kind for kind in usual_kinds(TOPOLOGY, 8, 600) if kind.gpus <= 20]
    jobs = made_jobs(Demand(tuple(small), load=1.5, hours=4, urgent_share=0.3), 8 * 8, rng)
    outages = made_outages(Outages(10, 0.5), [f"n{at}" for at in range(8)], 4 * 3_600, rng)
    pace = Pace(startup_s=10, look_again_s=600)
    first, again = (
        run_cluster(cluster(8), TOPOLOGY, jobs, outages, GangScheduler(), 4 * 3_600, pace=pace) for _ in range(2)
    )
    assert first == again
    assert first.partial_gang_s == 0
    assert first.stuck == 0
    assert outages
    assert first.placed > 5


@pytest.mark.parametrize("seed", [3, 4])
def test_nobody_waits_longer_than_the_bound_says(seed: int) -> None:
    """Gangs of all sizes on a cluster that is asked for more than it has; each ends within T of being placed."""
    rng = np.random.default_rng(seed)
    reserve_after_s, startup_s, most_s = 600.0, 10.0, 3_000.0
    jobs, now_s = [], 0.0
    for number in range(40):
        now_s += float(rng.exponential(500))
        size = int(rng.choice([1, 1, 1, 2, 6]))
        jobs.append(Job(gang(f"g{number}", size, submitted_at_s=now_s), float(rng.uniform(1_000, most_s))))
    scheduler = GangScheduler(settings=Settings(reserve_after_s=reserve_after_s, consolidate=False))
    pace = Pace(startup_s=startup_s, look_again_s=600)
    found = run_cluster(cluster(6), TOPOLOGY, jobs, (), scheduler, 200_000, pace=pace)
    assert found.finished == len(jobs)
    longest = most_s + startup_s + 600  # T, and the time between looks
    starts = [job.gang.submitted_at_s + wait_s for job, wait_s in zip(jobs, found.waits_s, strict=True)]
    for at, (job, wait_s) in enumerate(zip(jobs, found.waits_s, strict=True)):
        older = sum(start > job.gang.submitted_at_s for start in starts[:at])
        assert wait_s <= reserve_after_s + (older + 1) * longest
    # Large ones did have to wait for small ones, or this would test nothing.
    assert max(found.waits_s) > reserve_after_s


def test_a_search_that_would_never_end_is_given_up_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is searched, the solver looks at the clock, and each look brings the end of its budget nearer."""
    limits: list[Limits] = []

    def endless(*_: object, budget_s: float, clock_s: Callable[[], float], **more: object) -> Placement:
        limits.append(Limits(0, clock_s() + budget_s, clock_s))
        while True:
            limits[-1].check()

    monkeypatch.setattr("pointsman.core.placement.queues.books.place", endless)
    with pytest.raises(BudgetSpentError):
        GangScheduler().look(Look(empty(2), [gang("g")], {}, 0.0))
    assert len(limits) == 1
