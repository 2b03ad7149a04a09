"""What happens when."""

from __future__ import annotations

import random

import pytest

from pointsman.app.simulate.events import EventHeap


def order(heap: EventHeap, events: list[tuple[float, int, str]]) -> list[str]:
    ran: list[str] = []
    for at_ms, rank, name in events:
        heap.push(at_ms, rank, ran.append, name)
    while len(heap):
        heap.run_next()
    return ran


def test_by_time_then_rank_then_order() -> None:
    events = [(2.0, 0, "late"), (1.0, 1, "b"), (1.0, 1, "c"), (1.0, 0, "a"), (0.5, 9, "first")]
    assert order(EventHeap(0.0), events) == ["first", "a", "b", "c", "late"]


def test_ties_can_be_shuffled_and_nothing_else() -> None:
    events = [(float(number // 10), number % 10, f"{number // 10} {number}") for number in range(100)]
    plain = order(EventHeap(0.0), events)
    shuffled = [order(EventHeap(0.0, random.Random(seed)), events) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert plain != shuffled[0]
    assert [name.split()[0] for name in plain] == [name.split()[0] for name in shuffled[0]]


def test_an_event_may_make_others() -> None:
    heap = EventHeap(0.0)
    seen: list[float] = []

    def again(left: int) -> None:
        seen.append(heap.now_ms)
        if left:
            heap.push(heap.now_ms + 1, 0, again, left - 1)

    heap.push(5.0, 0, again, 2)
    while len(heap):
        heap.run_next()
    assert seen == [5.0, 6.0, 7.0]
    assert len(heap) == 0


@pytest.mark.parametrize("at_ms", [9.0, float("nan")])
def test_nothing_happens_in_the_past(at_ms: float) -> None:
    with pytest.raises(ValueError, match="before now"):
        EventHeap(10.0).push(at_ms, 0, print, None)
