"""Whatever comes, ends, fails and returns in whatever order: what a cycle may never do."""

from __future__ import annotations

import dataclasses

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.gangs import empty, faults, role, still

from pointsman.core.placement.gang import Gang, Near
from pointsman.core.placement.queues.actions import Action, ActionKind, Cause
from pointsman.core.placement.queues.amounts import Allowance
from pointsman.core.placement.queues.books import Settings
from pointsman.core.placement.queues.cycle import CycleResult, cycle
from pointsman.core.placement.queues.reservation import Reservations
from pointsman.core.placement.queues.tree import Queue, QueueTree
from pointsman.core.placement.queues.usage import Usage

TREE = QueueTree(
    (
        Queue("a", quota=Allowance(16_000), limit=Allowance(24_000)),
        Queue("b", quota=Allowance(8_000), over_quota_weight=2, preempt_min_runtime_s=60),
        Queue("b.x", "b", quota=Allowance(8_000)),
        Queue("b.y", "b", quota=Allowance(0)),
    )
)
SETTINGS = Settings(move_pause_s=50, reserve_after_s=200, reserve_for_s=400)
LEVEL = st.sampled_from([None, None, "node", "rack", "zone"])
SIZES = st.sampled_from([0.5, 1, 2, 4, 8])


class Events(RuleBasedStateMachine):
    """A cluster of six nodes in three racks and two zones, and its queues."""

    def __init__(self) -> None:
        super().__init__()
        self.start = empty(6, per_rack=2, racks_per_zone=2)
        self.state = self.start
        self.pending: dict[str, Gang] = {}
        self.since: dict[str, float] = {}
        self.lost: frozenset[str] = frozenset()
        self.reservations = Reservations()
        self.now_s = 0.0
        self.number = 0

    @rule(
        queue=st.sampled_from(["a", "b.x", "b.y"]),
        priority=st.integers(0, 2),
        preemptible=st.booleans(),
        prefill=st.integers(1, 3),
        decode=st.integers(0, 3),
        elastic=st.integers(0, 3),
        gpus=SIZES,
        required=LEVEL,
        near=LEVEL,
        min_runtime_s=st.sampled_from([0.0, 0.0, 150.0]),
    )
    def submit(
        self,
        queue: str,
        priority: int,
        preemptible: bool,
        prefill: int,
        decode: int,
        elastic: int,
        gpus: float,
        required: str | None,
        near: str | None,
        min_runtime_s: float,
    ) -> None:
        self.number += 1
        groups = [role("prefill", prefill, gpus, prefill + elastic, required=required)]
        nears = []
        if decode:
            groups.append(role("decode", decode, 1 if gpus < 1 else gpus / 2 if gpus < 2 else 2, decode + elastic))
            nears = [Near(("prefill", "decode"), near)] if near else []
        made = Gang(
            f"g{self.number}",
            tuple(groups),
            tuple(nears),
            queue=queue,
            priority=priority,
            preemptible=preemptible,
            min_runtime_s=min_runtime_s,
            submitted_at_s=self.now_s,
        )
        self.pending[made.name] = made

    @precondition(lambda self: self.since)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.since)))
        self.state = self.state.release(name)
        del self.since[name]

    @rule(nodes=st.sets(st.integers(0, 5), min_size=1, max_size=3))
    def fail(self, nodes: set[int]) -> None:
        self.state = self.state.with_ready([f"n{at}" for at in nodes], False)
        self.look()  # whoever runs on a lost node is in the hands of the next cycle

    @rule()
    def all_return(self) -> None:
        self.state = self.state.with_ready([node.name for node in self.state.nodes], True)

    @rule(seconds=st.sampled_from([1.0, 60.0, 300.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def look(self) -> None:
        before, since = self.state, dict(self.since)
        result = cycle(
            before,
            list(self.pending.values()),
            since,
            self.now_s,
            clock_s=still,
            tree=TREE,
            settings=SETTINGS,
            reservations=self.reservations,
            lost=self.lost,
        )
        self.state, self.reservations, self.lost = result.state, result.reservations, result.lost
        for action in result.actions:
            self.check(action, since)
        assert_can_be_carried_out(before, result)
        known = {**self.pending, **{name: placement.gang for name, placement in before.placements.items()}}
        self.pending = {name: each for name, each in known.items() if name not in self.state.placements}
        assert set(result.waiting) == set(self.pending)
        moved = {action.gang for action in result.actions if action.kind in (ActionKind.PLACE, ActionKind.MOVE)}
        self.since = {name: self.now_s if name in moved else since[name] for name in self.state.placements}
        # Nobody runs on a node that is down once a cycle has looked.
        down = {node.name for row, node in enumerate(self.state.nodes) if not self.state.ready[row]}
        assert not self.state.hit(down)
        # What was just placed is not taken away again a moment later.
        new = {action.gang for action in result.actions if action.kind is ActionKind.PLACE}
        again = self.second_look()
        gone = [action for action in again.actions if action.kind is ActionKind.EVICT and action.gang in new]
        assert not gone

    def second_look(self) -> CycleResult:
        return cycle(
            self.state,
            list(self.pending.values()),
            self.since,
            self.now_s,
            clock_s=still,
            tree=TREE,
            settings=dataclasses.replace(SETTINGS, consolidate=False),
            reservations=self.reservations,
            lost=self.lost,
        )

    def check(self, action: Action, since: dict[str, float]) -> None:
        if action.before is None or action.why.cause is Cause.NODE_LOST:
            return
        gang, ran_s = action.before.gang, self.now_s - since[action.gang]
        gives_floor = action.kind in (ActionKind.EVICT, ActionKind.MOVE)
        if gives_floor:
            assert gang.preemptible, action
            assert ran_s >= gang.min_runtime_s, action
        gangs = {**self.pending, **{name: placement.gang for name, placement in self.state.placements.items()}}
        if action.why.cause is Cause.PREEMPTION:
            other = gangs[action.why.in_favour_of]
            assert other.queue == gang.queue
            assert other.priority > gang.priority or (not gives_floor and other.priority == gang.priority), action
        if action.why.cause is Cause.RECLAIM:
            assert gangs[action.why.in_favour_of].queue != gang.queue
        if action.kind is ActionKind.EVICT:
            assert action.why.cause in (Cause.PREEMPTION, Cause.RECLAIM)
        if action.kind is ActionKind.MOVE and action.why.cause is Cause.CONSOLIDATION:
            assert ran_s >= SETTINGS.move_pause_s
            assert action.after is not None
            lacks = [r for r, count in action.before.replicas.items() if action.after.replicas[r] < count]
            assert not lacks, action

    @invariant()
    def all_is_well(self) -> None:
        down = {node.name for row, node in enumerate(self.state.nodes) if not self.state.ready[row]}
        if not self.state.hit(down):
            assert not faults(self.state, self.start)
        usage = Usage.of(TREE, self.state.placements.values())
        for queue in TREE.queues:
            for kind in range(3):
                assert usage.held[queue.name][kind] <= queue.limit.amounts[kind]
                assert usage.firm[queue.name][kind] <= queue.quota.amounts[kind]
        for placement in self.state.placements.values():
            for group in placement.gang.groups:
                assert placement.replicas[group.name] <= group.max_replicas


def assert_can_be_carried_out(before: object, result: CycleResult) -> None:
    """First everything is given up, then everything is taken: nothing is booked twice on the way."""
    state = before
    for action in result.actions:
        if action.before is not None:
            gone = frozenset(action.removed)
            left = tuple(pod for pod in action.before.pods if pod not in gone)
            state = state.exchange(dataclasses.replace(action.before, pods=left))  # type: ignore[attr-defined]
    for action in result.actions:
        if action.after is not None:
            there = action.gang in state.placements  # type: ignore[attr-defined]
            state = state.exchange(action.after) if there else state.hold(action.after)  # type: ignore[attr-defined]
    assert (state.device_free_milli == result.state.device_free_milli).all()  # type: ignore[attr-defined]


TestEvents = Events.TestCase
TestEvents.settings = hypothesis_settings(max_examples=25, stateful_step_count=25, deadline=None)
