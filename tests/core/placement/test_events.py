"""Whatever happens in whatever order: no GPU is given twice, nothing required is broken, no gang is held in part."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.placement_cases import random_gang, random_state
from harness.placement_check import faults
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.solver import place
from support.racks import ticking


class Events(RuleBasedStateMachine):
    """Gangs come, grow, shrink and go, nodes fail and come back; broken gangs are repaired or released whole."""

    @initialize(seed=st.integers(0, 10_000))
    def begin(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.empty = self.state = random_state(self.rng)
        self.number = 0

    @rule(elastic=st.booleans())
    def arrives(self, elastic: bool) -> None:
        self.number += 1
        gang = random_gang(self.rng, self.state, f"gang-{self.number}", most_replicas=2)
        found = place(self.state, gang, budget_s=60, clock_s=ticking(), elastic=elastic, explained=False)
        if isinstance(found, Placement) and found.pods:
            assert found.is_whole
            self.state = self.state.hold(found)

    @precondition(lambda self: self.state.placements)
    @rule(pick=st.integers(0, 99))
    def ends(self, pick: int) -> None:
        names = sorted(self.state.placements)
        self.state = self.state.release(names[pick % len(names)])

    @precondition(lambda self: self.state.placements)
    @rule(pick=st.integers(0, 99))
    def grows(self, pick: int) -> None:
        names = sorted(self.state.placements)
        kept = self.state.placements[names[pick % len(names)]]
        found = place(self.state, kept.gang, budget_s=60, clock_s=ticking(), kept=kept, explained=False)
        assert isinstance(found, Placement)
        assert found.pods[: len(kept.pods)] == kept.pods
        self.state = self.state.exchange(found)

    @precondition(lambda self: self.state.placements)
    @rule(pick=st.integers(0, 99))
    def gives_up_elastic_replicas(self, pick: int) -> None:
        names = sorted(self.state.placements)
        less = self.state.placements[names[pick % len(names)]]
        for group in less.gang.groups:
            less = less.without([(group.name, replica) for replica in less.elastic(group)[:1]])
        self.state = self.state.exchange(less)

    @rule(pick=st.integers(0, 99))
    def node_fails(self, pick: int) -> None:
        lost = self.state.nodes[pick % len(self.state.nodes)].name
        hit = self.state.hit([lost])
        self.state = self.state.with_ready([lost], False)
        for name in hit:
            kept = self.state.placements[name].without_nodes([lost])
            found = place(self.state, kept.gang, budget_s=60, clock_s=ticking(), kept=kept, explained=False)
            self.state = self.state.exchange(found) if isinstance(found, Placement) else self.state.release(name)

    @rule(pick=st.integers(0, 99))
    def node_comes_back(self, pick: int) -> None:
        self.state = self.state.with_ready([self.state.nodes[pick % len(self.state.nodes)].name], True)

    @invariant()
    def all_gangs_are_whole_and_as_close_as_is_required(self) -> None:
        all_up = self.empty.with_ready([node.name for node in self.empty.nodes], True)
        for placement in self.state.placements.values():
            assert placement.is_whole
            assert faults(all_up, placement) == []

    @invariant()
    def what_is_free_and_what_is_held_is_what_there_is(self) -> None:
        assert (self.state.device_free_milli >= np.minimum(self.empty.device_free_milli, 0)).all()
        state = self.state
        for name in self.state.placements:
            state = state.release(name)
        assert np.array_equal(state.device_free_milli, self.empty.device_free_milli)
        assert np.array_equal(state.cpu_free_milli, self.empty.cpu_free_milli)
        assert np.array_equal(state.memory_free_bytes, self.empty.memory_free_bytes)


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)
