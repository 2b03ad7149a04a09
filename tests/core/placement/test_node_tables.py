"""What a node holds and how tables add up, against trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.cluster import Cluster, ForeignPod
from pointsman.core.placement.devices import assign
from pointsman.core.placement.node_tables import node_tables
from pointsman.core.placement.optimize import NO_LIMIT
from pointsman.core.placement.resources import Resources
from pointsman.core.placement.state import ClusterState
from pointsman.core.placement.tables import BudgetSpentError, Limits, Table, added
from support.racks import TOPOLOGY, node

_ASKS = st.builds(
    Resources, st.sampled_from([0, 250, 300, 400, 500, 700, 1000, 2000]), st.sampled_from([0, 1000, 30_000])
)


def _packs(free: tuple[int, ...], pods: tuple[int, ...]) -> bool:
    """Whether pods of these thousandths of GPUs go into devices, by trying all ways."""
    if not pods:
        return True
    first, *rest = pods
    if first >= 1000:
        whole = [at for at, milli in enumerate(free) if milli == 1000][: first // 1000]
        if len(whole) < first // 1000:
            return False
        return _packs(tuple(0 if at in whole else milli for at, milli in enumerate(free)), tuple(rest))
    return any(
        _packs((*free[:at], milli - first, *free[at + 1 :]), tuple(rest))
        for at, milli in enumerate(free)
        if milli >= first and milli not in free[:at]
    )


@settings(max_examples=60)
@given(st.lists(_ASKS, min_size=1, max_size=3), st.lists(st.sampled_from([0, 300, 500, 600]), max_size=3))
def test_a_node_holds_exactly_what_its_devices_and_cpu_hold(asks: list[Resources], used: list[int]) -> None:
    pods = tuple(ForeignPod(f"p{at}", "x", "a", Resources(milli), (at,)) for at, milli in enumerate(used) if milli)
    state = ClusterState.of(Cluster((node("a", gpus=3),), pods), TOPOLOGY)
    caps = [3] * len(asks)
    found = node_tables(state, asks, [np.array([True])] * len(asks), caps)
    table = found.tables[found.class_of[0]]
    free = tuple(state.device_free_milli[0].tolist())
    for counts in itertools.product(range(4), repeat=len(asks)):
        milli = [ask.gpu_milli for ask, count in zip(asks, counts, strict=True) for _ in range(count) if ask.gpu_milli]
        # Whole devices last: shares first decide which devices stay whole.
        packs = _packs(free, tuple(sorted(milli, key=lambda each: (each >= 1000, -each))))
        cpu = sum(ask.cpu_milli * count for ask, count in zip(asks, counts, strict=True))
        fits = packs and cpu <= 64_000
        assert (table.least_cost(counts) is not None) == fits, counts
        if fits:
            devices = assign(free, asks, counts)
            assert [len(each) for each in devices] == list(counts)
            left = list(free)
            for ask, each in zip(asks, devices, strict=True):
                for pod in each:
                    assert len(set(pod)) == (1 if ask.device_share_milli else ask.whole_gpus)
                    for device in pod:
                        left[device] -= ask.device_share_milli or 1000
            assert min(left) >= 0


def test_more_than_fits_is_not_assigned() -> None:
    for asks, counts in (([Resources(1000)], [2]), ([Resources(600)], [2])):
        try:
            assign([1000], asks, counts)
        except PlacementError:
            continue
        raise AssertionError


_CAPS = (3, 4)


@st.composite
def _tables(draw: st.DrawFn) -> Table:
    """Any cumulative table: up to three rows of rising cost, less of the last item beside more of the first."""
    size = draw(st.integers(1, _CAPS[0] + 1))
    rows, row = [], [0] + [-1] * (size - 1)
    costs = [0, *sorted(draw(st.sets(st.integers(1, 9), max_size=2)))]
    for cost in costs:
        if cost or draw(st.booleans()):
            more = sorted(draw(st.lists(st.integers(-1, _CAPS[1]), min_size=size, max_size=size)), reverse=True)
            row = [max(a, b) for a, b in zip(row, more, strict=True)]
        rows.append(row)
    return Table(np.array(costs, dtype=np.int64), np.array(rows, dtype=np.int32))


@given(_tables(), _tables(), st.sampled_from([NO_LIMIT, 5]))
def test_tables_add_up_to_every_way_to_split(one: Table, other: Table, most_cost: int) -> None:
    limits = Limits(most_cost, 1.0, lambda: 0.0)
    total = added(one, other, _CAPS, limits)
    above: list[int] = []
    for wanted in itertools.product(*(range(cap + 1) for cap in _CAPS)):
        ways = []
        for part in itertools.product(*(range(count + 1) for count in wanted)):
            mine = one.least_cost(part)
            theirs = other.least_cost([a - b for a, b in zip(wanted, part, strict=True)])
            if mine is not None and theirs is not None:
                ways.append(mine + theirs)
        best = min(ways, default=None)
        if best is not None and best > most_cost:
            above.append(best)
            best = None
        assert total.least_cost(wanted) == best, wanted
    if above:
        assert limits.next_cost is not None
        assert limits.next_cost <= min(above)


def test_a_clock_that_counts_its_readings_measures_work() -> None:
    read: list[float] = []

    def clock_s() -> float:
        read.append(0.0)
        return len(read)

    limits = Limits(0, 100.0, clock_s)
    limits.check()
    assert len(read) == 1
    limits.check(1_000_000)
    assert len(read) == 52
    with pytest.raises(BudgetSpentError):
        limits.check(10_000_000)
    assert len(read) == 101
