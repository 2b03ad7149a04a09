"""The cycle: who is placed, who gives way, who waits and why."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from tests.support.gangs import TOPOLOGY, empty, faults, gang, pair, role, running, still

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, Node
from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, Reason
from pointsman.core.placement.queues.actions import ActionKind, Cause
from pointsman.core.placement.queues.amounts import Allowance
from pointsman.core.placement.queues.books import Settings
from pointsman.core.placement.queues.cycle import CycleResult, cycle
from pointsman.core.placement.queues.reservation import Reservations
from pointsman.core.placement.queues.tree import SINGLE_QUEUE, Queue, QueueTree
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState

NO_MOVES = Settings(consolidate=False)


def gpus(count: int | None) -> Allowance:
    return Allowance(None if count is None else count * 1000)


def with_gangs(state: ClusterState, *gangs: Gang, elastic: bool = True) -> ClusterState:
    """Placed one after another, whatever queues say."""
    for each in gangs:
        found = place(state, each, budget_s=1, clock_s=still, elastic=elastic)
        assert isinstance(found, Placement)
        state = state.hold(found)
    return state


def run(
    state: ClusterState,
    pending: Sequence[Gang],
    now_s: float = 1_000.0,
    tree: QueueTree = SINGLE_QUEUE,
    settings: Settings = NO_MOVES,
    **more: object,
) -> CycleResult:
    since = more.pop("since_s", running(state))
    return cycle(state, pending, since, now_s, clock_s=still, tree=tree, settings=settings, **more)  # type: ignore[arg-type]


def held(result: CycleResult) -> set[str]:
    return set(result.state.placements)


def test_of_two_that_fit_alone_but_not_together_one_is_whole_and_the_other_holds_nothing() -> None:
    start = empty(4)
    result = run(start, [pair("a", 1, 2), pair("b", 1, 2)])
    assert held(result) == {"a"}
    assert not faults(result.state, start)
    assert result.waiting["b"].reason is Reason.INSUFFICIENT_CAPACITY
    assert result.state.gpu_free_milli.sum() == 8_000


def test_priority_then_age_decide_in_a_queue() -> None:
    old, new, urgent = gang("old", submitted_at_s=1), gang("new", submitted_at_s=2), gang("urgent", priority=1)
    assert held(run(empty(2), [new, old, urgent])) == {"urgent", "old"}
    # One that does not fit holds up nobody behind it.
    assert held(run(empty(2), [gang("big", 3, priority=9), new])) == {"new"}


def test_queues_take_turns_by_fair_share() -> None:
    tree = QueueTree((Queue("a", quota=gpus(8)), Queue("b", quota=gpus(8))))
    pending = [gang(f"a{at}", queue="a", submitted_at_s=at) for at in range(4)]
    pending += [gang(f"b{at}", queue="b", submitted_at_s=10 + at) for at in range(4)]
    result = run(empty(4), pending, tree=tree)
    assert held(result) == {"a0", "a1", "b0", "b1"}
    assert result.shares["a"][0] == result.shares["b"][0] == 16_000


def test_limits_and_quotas_refuse_with_their_numbers() -> None:
    tree = QueueTree((Queue("team", quota=gpus(8), limit=gpus(16)), Queue("a", "team", quota=gpus(None))))
    state = with_gangs(empty(4), gang("r", queue="a"))
    result = run(state, [gang("big", 2, queue="a"), gang("firm", queue="a", preemptible=False)], tree=tree)
    assert held(result) == {"r", "firm"}  # within the quota: `r` can be preempted, so it does not count there
    refused = result.waiting["big"]
    assert refused.reason is Reason.QUOTA_EXCEEDED
    assert refused.text == "queue team may have at most 16 GPUs: it has 8 GPUs, and 16 GPUs more are asked for"
    result = run(result.state, [gang("firm2", queue="a", preemptible=False)], tree=tree, now_s=5_000.0)
    assert result.waiting["firm2"].reason is Reason.QUOTA_EXCEEDED


def test_what_can_not_be_preempted_stays_within_the_quota_with_its_elastic_replicas() -> None:
    tree = QueueTree((Queue("default", quota=gpus(16)),))
    result = run(empty(6), [gang("firm", 1, most=4, preemptible=False), gang("soft", 1, most=2)], tree=tree)
    replicas = {name: placement.replicas["worker"] for name, placement in result.state.placements.items()}
    assert replicas == {"firm": 2, "soft": 2}
    # Another one's floors are worth more than elastic replicas: those give back their part of the quota.
    result = run(result.state, [gang("next", 1, preemptible=False)], tree=tree, since_s=running(result.state))
    replicas = {name: placement.replicas["worker"] for name, placement in result.state.placements.items()}
    assert replicas == {"firm": 1, "soft": 2, "next": 1}


def test_who_gives_way_to_its_own_queue_does_not_come_back_above_the_limit() -> None:
    tree = QueueTree((Queue("default", limit=gpus(24)),))
    state = with_gangs(empty(6), gang("low", 3))
    result = run(state, [gang("urgent", 1, priority=2)], tree=tree)
    assert held(result) == {"urgent"}  # there is room on the cluster for both, but not within the limit
    state = with_gangs(empty(8, per_rack=2), gang("wide", 1, most=3))
    # `elsewhere` goes where nothing is given up, and still takes its part of the limit.
    elsewhere = Gang("elsewhere", (role("worker", 1, selector={"rack": ("r3",)}),))
    result = run(state, [elsewhere], tree=tree)
    assert result.state.placements["elsewhere"].nodes <= {"n6", "n7"}
    assert result.state.placements["wide"].replicas == {"worker": 2}


def test_a_role_without_floor_that_is_too_large_holds_up_no_other_role() -> None:
    groups = (role("big", 0, 8, 2), role("small", 1, 4, 3))
    result = run(empty(4), [Gang("a", groups)], tree=QueueTree((Queue("default", limit=gpus(8)),)))
    assert result.state.placements["a"].replicas == {"big": 0, "small": 2}


def test_an_unknown_queue_is_a_reason_and_stops_nobody_else() -> None:
    result = run(empty(1), [gang("lost", queue="nope"), gang("fine")])
    assert held(result) == {"fine"}
    assert "no queue 'nope'" in result.waiting["lost"].text


def test_a_gang_of_higher_priority_takes_the_place_of_the_newest_lower_one() -> None:
    state = with_gangs(empty(3), gang("x"), gang("y"), gang("z", priority=5))
    result = run(state, [gang("urgent", priority=3)], since_s={"x": 0, "y": 10, "z": 20})
    assert held(result) == {"x", "z", "urgent"}
    evicted = next(action for action in result.actions if action.kind is ActionKind.EVICT)
    assert (evicted.gang, evicted.why.cause, evicted.why.in_favour_of) == ("y", Cause.PREEMPTION, "urgent")
    assert "gave way to urgent" in result.waiting["y"].text


def test_no_gang_gives_way_to_an_equal_one_or_before_its_time_or_if_it_is_firm() -> None:
    for victim, since in (
        (gang("x", priority=3), 0.0),
        (gang("x", min_runtime_s=2_000), 0.0),
        (gang("x", preemptible=False), 0.0),
    ):
        state = with_gangs(empty(1), victim)
        assert held(run(state, [gang("urgent", priority=3)], since_s={"x": since})) == {"x"}
    tree = QueueTree((Queue("default", preempt_min_runtime_s=2_000),))
    state = with_gangs(empty(1), gang("x"))
    assert held(run(state, [gang("urgent", priority=3)], tree=tree)) == {"x"}
    assert held(run(state, [gang("urgent", priority=3)], tree=tree, now_s=2_000.0)) == {"urgent"}


def test_elastic_replicas_are_given_up_before_any_gang_and_no_more_than_needed() -> None:
    state = with_gangs(empty(6), gang("low", 1, priority=0), gang("wide", 1, most=5, priority=2))
    result = run(state, [gang("new", 2, priority=2, min_runtime_s=50)])
    assert held(result) == {"low", "wide", "new"}
    assert result.state.placements["wide"].replicas == {"worker": 3}
    shrunk = next(action for action in result.actions if action.gang == "wide")
    assert (shrunk.kind, len(shrunk.removed)) == (ActionKind.SHRINK, 2)


def test_elastic_replicas_of_a_firm_gang_are_not_firm() -> None:
    state = with_gangs(empty(2), gang("firm", 1, most=2, preemptible=False))
    result = run(state, [gang("new")])
    assert held(result) == {"firm", "new"}


def test_a_queue_gets_back_what_others_have_above_their_share() -> None:
    tree = QueueTree((Queue("a", quota=gpus(8)), Queue("b", quota=gpus(8))))
    state = with_gangs(empty(4), *(gang(f"a{at}", queue="a") for at in range(4)))
    pending = [gang(f"b{at}", queue="b") for at in range(3)]
    result = run(state, pending, tree=tree, since_s={f"a{at}": float(at) for at in range(4)})
    assert held(result) == {"a0", "a1", "b0", "b1"}  # the newest of the others, and not more than the share
    assert {action.why.cause for action in result.actions if action.kind is ActionKind.EVICT} == {Cause.RECLAIM}
    # And the others can't take it back.
    again = run(result.state, [gang("a2", queue="a"), gang("a3", queue="a")], tree=tree, now_s=9_000.0)
    assert held(again) == held(result)


def test_reclaiming_goes_up_the_tree_and_respects_the_time_that_gangs_are_left_alone() -> None:
    def tree(left_alone_s: float) -> QueueTree:
        return QueueTree(
            (
                Queue("one", quota=gpus(16)),
                Queue("two", quota=gpus(16)),
                Queue("one.a", "one", quota=gpus(8), reclaim_min_runtime_s=left_alone_s),
                Queue("one.b", "one", quota=gpus(8)),
                Queue("two.a", "two", quota=gpus(16)),
            )
        )

    state = with_gangs(empty(4), *(gang(f"a{at}", queue="one.a") for at in range(3)), gang("b", queue="one.b"))
    assert held(run(state, [gang("c", queue="two.a")], tree=tree(2_000))) == {"a0", "a1", "a2", "b"}
    result = run(state, [gang("c", queue="two.a")], tree=tree(500))
    assert "c" in held(result)
    assert "b" in held(result)  # its queue has no more than it is owed
    # Two siblings of the same parent as well, up to half of what the parent has beside what they are owed.
    siblings = run(state, [gang("b2", queue="one.b"), gang("b3", queue="one.b")], tree=tree(500))
    assert held(siblings) == {"a1", "a2", "b", "b2"}


def test_own_elastic_replicas_and_a_reclaim_together_make_room() -> None:
    tree = QueueTree((Queue("a", quota=gpus(16)), Queue("b", quota=gpus(16))))
    state = with_gangs(empty(4), gang("a0", 1, most=2, queue="a"), gang("b0", queue="b"), gang("b1", queue="b"))
    result = run(state, [gang("a1", 1, queue="a")], tree=tree)
    assert held(result) == {"a0", "b0", "b1", "a1"}
    assert result.state.placements["a0"].replicas == {"worker": 1}


def test_gangs_are_moved_if_all_find_another_place_and_left_alone_otherwise() -> None:
    start = empty(2)
    state = with_gangs(start, gang("s0", 1, gpus=4), gang("full", 1, gpus=4), gang("s1", 1, gpus=4))
    state = state.release("full")
    moving = Settings(consolidate=True, move_pause_s=100)
    result = run(state, [gang("new", 1, gpus=8)], settings=moving)
    assert held(result) == {"s0", "s1", "new"}
    moved = [action for action in result.actions if action.kind is ActionKind.MOVE]
    assert [(action.why.cause, action.why.in_favour_of) for action in moved] == [(Cause.CONSOLIDATION, "new")]
    assert not faults(result.state, start)
    for settings in (Settings(consolidate=False), Settings(move_pause_s=5_000)):
        assert not run(state, [gang("new", 1, gpus=8)], settings=settings).actions
    # Too little is free: nobody is moved.
    busy = with_gangs(state, gang("s2", 1, gpus=2))
    assert not run(busy, [gang("new", 1, gpus=8)], settings=moving).actions


def test_no_more_gpus_are_moved_than_are_placed() -> None:
    two = ClusterState.of(Cluster((Node("a", 4, labels={"name": "a"}), Node("b", 4, labels={"name": "b"}))), TOPOLOGY)
    two = with_gangs(two, Gang("s0", (role("worker", 1, gpus=3, selector={"name": ("a",)}),)))
    loose = Placement(gang("s0", 1, gpus=3), two.placements["s0"].pods)
    two = two.exchange(loose)
    small = Gang("new", (role("worker", 1, gpus=2, selector={"name": ("a",)}),))
    assert held(run(two, [small], settings=Settings(move_pause_s=0))) == {"s0"}
    large = Gang("new", (role("worker", 1, gpus=4, selector={"name": ("a",)}),))
    assert held(run(two, [large], settings=Settings(move_pause_s=0))) == {"s0", "new"}


def test_what_a_lost_node_took_is_replaced_before_newcomers_and_the_rest_stays() -> None:
    start = empty(4)
    state = with_gangs(start, gang("a", 3))
    lost = next(pod.node for pod in state.placements["a"].pods if pod.replica == 1)
    result = run(state.with_ready([lost], False), [gang("new", submitted_at_s=-1)])
    assert held(result) == {"a"}
    (action,) = result.actions
    assert (action.kind, action.why.cause) == (ActionKind.REPAIR, Cause.NODE_LOST)
    assert len(action.removed) == len(action.added) == 1
    assert not faults(result.state, start)


def test_a_gang_that_can_not_be_repaired_holds_nothing_and_goes_first_later() -> None:
    start = empty(3)
    state = with_gangs(start, gang("a", 3))
    down = state.with_ready(["n1"], False)
    result = run(down, [gang("new", priority=9)])
    assert held(result) == {"new"}
    assert result.lost == {"a"}
    assert "goes first" in result.waiting["a"].text
    back = result.state.with_ready(["n1"], True).release("new")
    later = run(back, [gang("newer", priority=9), state.placements["a"].gang], lost=result.lost)
    assert held(later) == {"a"}
    assert not later.lost


def test_a_lost_elastic_replica_is_no_emergency() -> None:
    state = with_gangs(empty(3), gang("a", 1, most=3))
    result = run(state.with_ready(["n1"], False), [gang("new")])
    assert held(result) == {"a", "new"}
    assert result.state.placements["a"].replicas == {"worker": 1}


def test_a_repair_may_make_lower_gangs_give_way() -> None:
    state = with_gangs(empty(3), gang("a", 2, priority=4), gang("low"))
    lost = state.placements["a"].pods[0].node
    result = run(state.with_ready([lost], False), [])
    assert held(result) == {"a"}
    assert result.waiting["low"].gang.name == "low"


def test_what_nobody_waits_for_goes_to_elastic_replicas_within_limits() -> None:
    result = run(empty(4), [gang("wide", 1, most=9)])
    assert result.state.placements["wide"].replicas == {"worker": 4}
    tree = QueueTree((Queue("default", limit=gpus(16)),))
    result = run(empty(4), [gang("wide", 1, most=9)], tree=tree)
    assert result.state.placements["wide"].replicas == {"worker": 2}
    assert result.state.placements["wide"].gang.groups[0].max_replicas == 9


def test_a_role_without_a_floor_keeps_to_limits_too() -> None:
    tree = QueueTree((Queue("default", limit=gpus(8)),))
    both = Gang("both", (role("worker", 1), role("extra", 0, most=2)))
    assert run(empty(4), [both], tree=tree).state.placements["both"].replicas == {"worker": 1, "extra": 0}
    assert run(empty(4), [both]).state.placements["both"].replicas == {"worker": 1, "extra": 2}


def test_floors_go_where_elastic_replicas_fit_too() -> None:
    state = with_gangs(empty(8), gang("there", 3))
    wide = Gang("wide", (role("worker", 1, most=4, required="rack"),))
    result = run(state, [wide])
    assert result.state.placements["wide"].replicas == {"worker": 4}


def test_when_time_is_spent_gangs_wait_and_nothing_is_half_done() -> None:
    ticks = itertools.count()
    start = empty(8)
    result = cycle(
        start,
        [gang(f"g{at}", 2, priority=-at) for at in range(4)],
        {},
        0.0,
        clock_s=lambda: float(next(ticks)),
        settings=Settings(cycle_budget_s=15, gang_budget_s=10),
    )
    assert not faults(result.state, start)
    late = [each for each in result.waiting.values() if "time of the cycle" in each.text]
    assert late
    assert not any(each.proved for each in late)


def test_contradictions_are_refused() -> None:
    state = with_gangs(empty(2), gang("a"))
    with pytest.raises(PlacementError, match="gang a waits, and has a place already"):
        run(state, [gang("a")])
    with pytest.raises(PlacementError, match="gang b waits twice"):
        run(state, [gang("b"), gang("b")])
    with pytest.raises(PlacementError, match="since_s does not say"):
        run(state, [], since_s={})
    with pytest.raises(PlacementError, match="most_moved is 0"):
        Settings(most_moved=0)


def test_small_newcomers_can_not_starve_a_large_gang() -> None:
    """Nodes become free one at a time, and there is always a newcomer of higher priority for each."""
    state = with_gangs(empty(2), gang("s0"), gang("s1"))
    big = gang("big", 2, submitted_at_s=0)
    since: dict[str, float] = {"s0": 0.0, "s1": 50.0}
    reservations, number, now_s = Reservations(), 2, 100.0
    settings = Settings(reserve_after_s=300, consolidate=False)
    while "big" not in state.placements:
        assert now_s <= 600, "placed within reserve_after_s plus how long the others run"
        ended = [name for name, at in since.items() if now_s - at >= 100]
        for name in ended:
            state = state.release(name)
            del since[name]
        new = gang(f"s{number}", priority=7, submitted_at_s=now_s)
        number += 1
        result = run(state, [big, new], now_s, settings=settings, since_s=since, reservations=reservations)
        for name in result.state.placements:
            since.setdefault(name, now_s)
        state, reservations = result.state, result.reservations
        now_s += 50.0
    assert now_s > 300  # until then newcomers of higher priority did go first


def test_nodes_set_aside_in_vain_are_free_again() -> None:
    state = with_gangs(empty(2), gang("forever"))
    big = gang("big", 2, submitted_at_s=0)
    settings = Settings(reserve_after_s=10, reserve_for_s=100, consolidate=False)
    first = run(state, [big], 20.0, settings=settings)
    assert first.reservations.current is not None
    assert first.reservations.current.nodes == {"n0", "n1"}
    assert held(run(state, [big, gang("new")], 30.0, settings=settings, reservations=first.reservations)) == {"forever"}
    later = run(state, [big, gang("new")], 130.0, settings=settings, reservations=first.reservations)
    assert held(later) == {"forever", "new"}
    assert later.reservations.resting_until_s == {"big": 230.0}
