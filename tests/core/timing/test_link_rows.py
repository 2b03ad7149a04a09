from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.timing.fleet_times import FleetTimes
from pointsman.core.timing.link_rows import LinkRows
from pointsman.core.timing.link_times import PRIOR, LinkEstimate, LinkTimes
from pointsman.core.timing.spread import mean_excess

SLOW = LinkEstimate(5.0, (1e3, 2e3, 3e3, 4e3), 3.0)
NEAR = LinkEstimate(0.5, (1e6, 2e6, 3e6, 4e6), 1.0)
LINKS = LinkTimes({(0, 1): SLOW, (1, 0): NEAR, (900, 0): SLOW}, PRIOR)

NODES = st.lists(st.sampled_from([-1, 0, 1, 2, 7, 900]), min_size=1, max_size=5)


@given(asked=st.lists(st.tuples(NODES, NODES, st.integers(0, 1 << 30), st.integers(0, 4)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_arrays_say_what_the_estimates_say(asked: list[tuple[list[int], list[int], int, int]]) -> None:
    rows = LinkRows(LINKS)
    for sources, targets, size, under_way in asked:
        one, other = np.array(sources), np.array(targets)
        numbers = rows.of(one[:, None], other)
        shape = (len(sources), len(targets))
        sizes = np.full(shape, float(size))
        found = rows.ms(numbers, sizes, np.full(shape, under_way))
        block = rows.block(one, other)
        alone = block.floor_ms + (1 + under_way) * block.moving_ms(sizes)
        for i, source in enumerate(sources):
            for j, target in enumerate(targets):
                link = LINKS.of(source, target)
                assert found[i, j] == pytest.approx(link.ms(size, under_way))
                assert alone[i, j] == pytest.approx(found[i, j])
                assert rows.floor_ms(numbers)[i, j] == link.floor_ms
                assert rows.spread(numbers)[i, j] == link.spread


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 16 << 20, 256 << 20, (256 << 20) + 1])
def test_a_class_of_size_ends_where_it_says(size: int) -> None:
    rows = LinkRows(LINKS)
    numbers = rows.of(np.array([0]), np.array([1]))
    assert rows.ms(numbers, np.array([float(size)]), np.array([0]))[0] == pytest.approx(SLOW.ms(size))


def test_pairs_among_the_same_machines_are_kept() -> None:
    rows = LinkRows(LINKS)
    nodes = np.array([0, 1, -1])
    block = rows.among(nodes)
    assert rows.among(nodes.copy()) is block
    some = block.of(np.array([1]))
    assert some.floor_ms.tolist() == [block.floor_ms[1].tolist()]
    for number in range(100):
        rows.among(np.array([number]))
    assert rows.among(nodes) is not block


def test_times_of_a_fleet_carry_the_links_of_their_snapshot() -> None:
    times = FleetTimes({}, links=LINKS)
    assert times.link_rows is times.link_rows
    assert times.link_rows.usual_bytes_per_ms == PRIOR.bytes_per_ms[-1]


def test_the_mean_of_a_lognormal_exceeds_its_median_by_what_its_spread_says() -> None:
    rng = np.random.default_rng(1)
    for spread in (1.2, 2.0, 3.5):
        ratios = rng.lognormal(0.0, np.log(spread) / 1.2816, 200_000)
        assert float(mean_excess(np.array([spread]))[0]) == pytest.approx(ratios.mean() - 1, rel=0.05)
    assert mean_excess(np.array([0.5, 1.0, 4.0, 100.0])).tolist() == pytest.approx([0.0, 0.0, 0.795, 0.795], abs=1e-3)
