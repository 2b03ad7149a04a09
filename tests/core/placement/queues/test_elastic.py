from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.gangs import role

from pointsman.core.placement.gang import Gang
from pointsman.core.placement.plan import Placement, PodPlace
from pointsman.core.placement.queues.amounts import UNLIMITED, Amounts
from pointsman.core.placement.queues.elastic import capped

SHAPES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=4)


def one_by_one(gang: Gang, have: Placement, room: int) -> dict[str, int]:
    """The rule as it is said: the role that asks for most more loses one, until the rest fits."""
    counts = {group.name: group.max_replicas for group in gang.groups}
    sizes = {group.name: group.requests.gpu_milli for group in gang.groups}
    while sum(sizes[name] * (counts[name] - have.replicas[name]) for name in counts) > room:
        counts[max(counts, key=lambda name: counts[name] - have.replicas[name])] -= 1
    return counts


@given(SHAPES, st.integers(0, 20))
def test_the_role_that_asks_for_most_more_is_cut_first(shapes: list[tuple[int, int, int]], room: int) -> None:
    groups = tuple(role(f"r{at}", floor, gpus, max(1, floor + more)) for at, (floor, more, gpus) in enumerate(shapes))
    gang = Gang("a", groups)
    pods = tuple(PodPlace(each.name, at, 0, "n0") for each in groups for at in range(each.min_replicas))
    have = Placement(gang, pods)
    cut = capped(gang, have, (room * 1000, UNLIMITED, UNLIMITED))
    expected = one_by_one(gang, have, room * 1000)
    found = {each.name: 0 if each.name in cut.barred else each.max_replicas for each in cut.gang.groups}
    assert found == expected
    assert cut.full is gang


def test_many_replicas_are_cut_at_once() -> None:
    gang = Gang("a", (role("x", 0, 1, 10**9), role("y", 1, 2, 10**9)))
    room: Amounts = (9_000, 0, 0)
    cut = capped(gang, Placement(gang, (PodPlace("y", 0, 0, "n0"),)), room)
    assert [each.max_replicas for each in cut.gang.groups] == [3, 4]


def test_what_a_barred_role_got_is_left_out_again() -> None:
    gang = Gang("a", (role("x", 0, 8, 2), role("y", 1, 1, 2)))
    have = Placement(gang, (PodPlace("y", 0, 0, "n0"),))
    cut = capped(gang, have, (1_000, 0, 0))
    assert cut.barred == {"x"}
    found = cut.allowed(Placement(cut.gang, (*have.pods, PodPlace("x", 0, 0, "n1"), PodPlace("y", 1, 0, "n0"))))
    assert found.gang is gang
    assert found.replicas == {"x": 0, "y": 2}
