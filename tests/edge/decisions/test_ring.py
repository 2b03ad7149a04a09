"""The ring holds the last decisions within its bounds, and those that run until they end."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pointsman.edge.decisions.record import DecisionRecord
from pointsman.edge.decisions.ring import DecisionRing
from support.decisions import busy_view, decided, ended, request, times_of


def record(name: str, size: int = 10, client: bytes | None = None) -> DecisionRecord:
    made = decided(request(name))
    made.size_bytes, made.client_id = size, client
    return made


class Rings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ring = DecisionRing(5, 100)
        self.running: list[DecisionRecord] = []
        self.over: list[DecisionRecord] = []
        self.began = 0

    @rule()
    def begin(self) -> None:
        self.began += 1
        made = record(f"r{self.began}")
        self.running.append(made)
        self.ring.begin(made)

    @rule(size=st.integers(1, 120), data=st.data())
    def end(self, size: int, data: st.DataObject) -> None:
        if not self.running:
            return
        made = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        made.size_bytes = size
        self.ring.end(made)
        if size <= 100:
            self.over.append(made)

    @invariant()
    def holds_the_last_that_fit(self) -> None:
        ring = self.ring
        assert list(ring)[: len(self.running)] == self.running[::-1]
        ended_now = list(ring)[len(self.running) :]
        assert ended_now == self.over[::-1][: len(ended_now)]
        assert ended_now or not self.over
        assert len(ended_now) <= 5
        assert ring.bytes == sum(one.size_bytes for one in ended_now) <= 100
        assert (ring.kept, ring.running) == (len(ended_now), len(self.running))
        assert ring.kept + ring.dropped + ring.running == self.began
        assert ring.oldest is (ended_now[-1] if ended_now else None)
        for made in (*self.running, *ended_now):
            assert ring.find(made.request.id) is made
        for made in self.over[: len(self.over) - len(ended_now)]:
            assert ring.find(made.request.id) is None


TestRings = Rings.TestCase


def test_a_large_one_takes_the_place_of_as_many_as_it_needs_and_no_more() -> None:
    ring = DecisionRing(10, 100)
    for number in range(5):
        ring.end(record(f"r{number}", 20))
    ring.end(record("large", 50))
    assert [one.request.id for one in ring] == ["large", "r4", "r3"]
    ring.end(record("too large", 101))
    assert [one.request.id for one in ring] == ["large", "r4", "r3"]
    assert ring.dropped == 4


def test_what_clients_call_it_is_found_too_and_of_several_the_youngest() -> None:
    ring = DecisionRing(10, 1000)
    for name, client in (("r1", b"mine"), ("r2", b"mine"), ("r3", b"caf\xe9")):
        ring.end(record(name, client=client))
    running = record("r4", client=b"other")
    ring.begin(running)
    assert ring.find("mine") is ring.find("r2") is not None
    assert ring.find("café") is ring.find("r3")
    assert ring.find("other") is running
    assert ring.find("None") is None
    assert ring.find("日本") is None


def test_nothing_is_kept_where_none_shall_be() -> None:
    ring = DecisionRing(0, 100)
    made = record("r1")
    ring.begin(made)
    ring.end(made)
    assert (list(ring), ring.kept, ring.running, ring.bytes, ring.dropped) == ([], 0, 0, 0, 0)


@pytest.mark.parametrize("workers", [1, 8, 256])
def test_a_large_fleet_is_bounded_by_bytes(workers: int) -> None:
    view = busy_view(workers)
    times = times_of(view)
    ring = DecisionRing(4096, 2**20)
    for number in range(500):
        ring.end(ended(decided(request(f"r{number}"), "random", view, times)))
    size = next(iter(ring)).size_bytes
    assert size >= view.table.nbytes
    assert ring.kept == min(500, 2**20 // size)
    assert ring.bytes <= 2**20
