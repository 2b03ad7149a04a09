"""Transfers that share links."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.engine_model.links import LinkNetwork
from pointsman.core.timing.links import Link

SLOW, FAST = Link("slow", 1e-6 * 100, 1.0), Link("fast", 1e-6 * 300, 1.0)
"""100 and 300 bytes a ms."""


def run(network: LinkNetwork) -> dict[int, float]:
    ends: dict[int, float] = {}
    while (at_ms := network.next_end_ms()) is not None:
        ends.update(dict.fromkeys(network.advance(at_ms), at_ms))
    return ends


def test_alone_a_transfer_takes_its_floor_and_its_bytes() -> None:
    network = LinkNetwork(SLOW)
    number = network.start(5.0, 0, 1, 1000)
    assert run(network) == {number: pytest.approx(5 + SLOW.transfer_ms(1000))}
    assert len(network) == 0
    assert network.next_end_ms() is None


def test_transfers_from_one_worker_share_its_link_and_the_last_gets_all_of_it() -> None:
    network = LinkNetwork(SLOW)
    short, long = network.start(0, 0, 1, 500), network.start(0, 0, 2, 1000)
    assert run(network) == {short: pytest.approx(1 + 10), long: pytest.approx(1 + 10 + 5)}


def test_pairs_that_reach_each_other_another_way_have_that_link_for_themselves() -> None:
    network = LinkNetwork(SLOW, between={(0, 2): FAST, (0, 3): FAST})
    own, near, other = network.start(0, 0, 1, 1000), network.start(0, 0, 2, 1500), network.start(0, 0, 3, 1500)
    # The two near ones share one link of worker 0, the first one has the worker's own.
    assert run(network) == {own: pytest.approx(11), near: pytest.approx(11), other: pytest.approx(11)}
    back = network.start(network.next_end_ms() or 20, 2, 0, 1000)  # the other way it is not said
    assert run(network) == {back: pytest.approx(20 + 11)}


def test_what_goes_out_does_not_slow_down_what_comes_in() -> None:
    network = LinkNetwork(SLOW)
    ends = {network.start(0, 0, 1, 1000), network.start(0, 1, 0, 1000)}
    assert run(network) == dict.fromkeys(ends, pytest.approx(11))


def test_what_one_transfer_can_not_use_others_get() -> None:
    # 300 out of worker 0: one of the three goes to a slow worker with two others, so the other two share the rest.
    network = LinkNetwork(FAST, {9: SLOW})
    crowded = [network.start(0, source, 9, 100_000) for source in (0, 1)]
    free = network.start(0, 0, 2, 2500)
    assert run(network)[free] == pytest.approx(1 + 2500 / 250)
    assert crowded


def test_a_later_transfer_slows_down_the_first_and_a_cancelled_one_no_more() -> None:
    network = LinkNetwork(SLOW)
    first = network.start(0, 0, 1, 1000)
    second = network.start(5, 0, 2, 1000)
    assert network.cancel(8, second)
    assert not network.cancel(8, second)
    # 0-1 floor, to 6 alone, to 8 shared, then alone: 500 + 100 + 400.
    assert run(network) == {first: pytest.approx(12)}


def test_one_that_ended_before_it_was_cancelled_is_not_told_of() -> None:
    network = LinkNetwork(SLOW)
    number = network.start(0, 0, 1, 100)
    assert network.cancel(50, number)
    assert network.advance(50) == []


def test_within_a_worker_nothing_has_to_move() -> None:
    network = LinkNetwork(SLOW)
    number = network.start(3.0, 4, 4, 10**9)
    assert network.next_end_ms() == 3.0
    assert network.advance(3.0) == [number]


def test_nothing_to_move_takes_the_floor() -> None:
    network = LinkNetwork(SLOW)
    number = network.start(0, 0, 1, 0)
    assert run(network) == {number: 1.0}


def test_a_long_leap_passes_all_ends_in_their_order() -> None:
    network = LinkNetwork(SLOW)
    long, short = network.start(0, 0, 1, 900), network.start(0, 0, 2, 100)
    assert network.advance(1000) == [short, long]


def test_time_does_not_go_back_and_bytes_are_not_negative() -> None:
    network = LinkNetwork(SLOW)
    network.advance(5)
    with pytest.raises(ValueError, match="time went back from 5 to 4"):
        network.start(4, 0, 1, 1)
    with pytest.raises(ValueError, match="size_bytes is -1"):
        network.start(5, 0, 1, -1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5000)),
        min_size=1,
        max_size=15,
    ),
    st.booleans(),
)
def test_no_link_carries_more_than_it_can_and_everything_arrives(
    starts: list[tuple[int, int, int, int]], by_events: bool
) -> None:
    links = {0: SLOW, 3: FAST}
    network = LinkNetwork(Link("middle", 1e-6 * 200, 0.5), links)
    now_ms, ends = 0.0, {}
    begun: dict[int, tuple[float, int, int, int]] = {}
    for gap, source, target, size in starts:
        now_ms += gap
        while by_events and (at_ms := network.next_end_ms()) is not None and at_ms <= now_ms:
            ends.update(dict.fromkeys(network.advance(at_ms), at_ms))
        number = network.start(now_ms, source, target, size)
        begun[number] = (now_ms, source, target, size if source != target else 0)
    ends.update(run(network))
    assert sorted(ends) == sorted(begun)
    for number, (start_ms, source, target, size) in begun.items():
        pair = [links.get(worker, network._link) for worker in (source, target)]
        alone_ms = max(link.floor_ms for link in pair) + size / min(link.bytes_per_ms for link in pair)
        if by_events and source != target:
            assert ends[number] >= start_ms + alone_ms - 1e-6
    # A worker's bytes can't all have left earlier than at full speed, one behind the other.
    for worker in range(4):
        link = links.get(worker, network._link)
        for way in (1, 2):
            mine = {n: t for n, t in begun.items() if t[way] == worker and t[1] != t[2]}
            if mine:
                earliest_ms = min(t[0] for t in mine.values()) + sum(t[3] for t in mine.values()) / link.bytes_per_ms
                assert max(ends[n] for n in mine) >= earliest_ms - 1e-6
