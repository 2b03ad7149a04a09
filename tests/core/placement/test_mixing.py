"""Prefill and decode side by side where it costs nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.gangs import empty, faults, pair, role, still

from pointsman.core.placement.gang import Gang, Near
from pointsman.core.placement.mixing import mixed
from pointsman.core.placement.plan import Placement
from pointsman.core.placement.solver import place
from pointsman.core.placement.state import ClusterState


def placed(state: ClusterState, gang: Gang) -> Placement:
    found = place(state, gang, budget_s=1, clock_s=still)
    assert isinstance(found, Placement)
    return found


def by_rack(state: ClusterState, placement: Placement) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for pod in placement.pods:
        rack = state.nodes[state.row_of[pod.node]].labels["rack"]
        found.setdefault(rack, Counter())[pod.role] += 1
    return found


def test_every_rack_gets_both_in_proportion() -> None:
    state = empty(8, per_rack=4)
    counts = by_rack(state, placed(state, pair("a", 2, 6)))
    assert all(each == {"prefill": 1, "decode": 3} for each in counts.values())
    assert len(counts) == 2


def test_nodes_too_where_two_fit_on_one() -> None:
    state = empty(2)
    found = placed(state, pair("a", 2, 2, gpus=4))
    assert {node: {pod.role for pod in found.pods if pod.node == node} for node in found.nodes} == {
        "n0": {"prefill", "decode"},
        "n1": {"prefill", "decode"},
    }


def test_roles_with_constraints_or_sizes_of_their_own_stay_as_they_are() -> None:
    state = empty(8, per_rack=4)
    for gang in (
        Gang("own", (role("prefill", 4, required="rack", stage="prefill"), role("decode", 4, stage="decode"))),
        Gang("size", (role("prefill", 4, gpus=4, stage="prefill"), role("decode", 4, stage="decode"))),
        Gang("plain", (role("one", 4), role("two", 4))),
    ):
        found = placed(state, gang)
        assert mixed(state, gang, found.pods) == found.pods
        assert not faults(state.hold(found), state)


def test_what_is_there_already_stays_where_it_is() -> None:
    state = empty(8, per_rack=4)
    first = placed(state, pair("a", 1, 2))
    more = pair("a", 4, 4)
    kept = replace(first, gang=more)
    found = place(state, more, budget_s=1, clock_s=still, kept=kept)
    assert isinstance(found, Placement)
    assert set(first.pods) <= set(found.pods)


@given(prefill=st.integers(1, 9), decode=st.integers(1, 9), gpus=st.sampled_from([1, 2, 4, 8]), near=st.booleans())
def test_the_same_devices_are_used_and_all_constraints_hold(prefill: int, decode: int, gpus: int, near: bool) -> None:
    state = empty(18, per_rack=3)
    gang = pair("a", prefill, decode, gpus, near=(Near(("prefill", "decode"), "zone"),) if near else ())
    found = place(state, gang, budget_s=1, clock_s=still)
    if not isinstance(found, Placement):
        return
    assert not faults(state.hold(found), state)
    assert found.replicas == {"prefill": prefill, "decode": decode}
    again = mixed(state, gang, found.pods)
    assert Counter((pod.node, pod.devices) for pod in again) == Counter((pod.node, pod.devices) for pod in found.pods)
