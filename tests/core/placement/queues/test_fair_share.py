"""Fair shares: known numbers, and what holds for all trees."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.core.model.errors import PlacementError
from pointsman.core.placement.queues.amounts import UNLIMITED, Allowance, Amounts
from pointsman.core.placement.queues.fair_share import divide, fair_shares, requests_up
from pointsman.core.placement.queues.tree import Queue, QueueTree


def gpus(count: float | None) -> Allowance:
    return Allowance(None if count is None else round(count * 1000))


def shares_of(queues: tuple[Queue, ...], total_gpus: int, asked: dict[str, float]) -> dict[str, float]:
    requests: dict[str, Amounts] = {name: (round(value * 1000), 0, 0) for name, value in asked.items()}
    found = fair_shares(QueueTree(queues), (total_gpus * 1000, 0, 0), requests)
    return {name: amounts[0] / 1000 for name, amounts in found.items()}


def test_the_published_example_of_quota_and_weights() -> None:
    queues = (Queue("a", quota=gpus(10), over_quota_weight=3), Queue("b", quota=gpus(10), over_quota_weight=1))
    assert shares_of(queues, 100, {"a": 100, "b": 100}) == {"a": 70, "b": 30}


def test_who_asks_for_little_leaves_the_rest_to_the_others() -> None:
    queues = (Queue("a", quota=gpus(10), over_quota_weight=3), Queue("b", quota=gpus(10)), Queue("c", quota=gpus(10)))
    assert shares_of(queues, 100, {"a": 15, "b": 100, "c": 100}) == {"a": 15, "b": 43, "c": 42}


def test_the_higher_queue_priority_gets_all_that_nobody_is_owed() -> None:
    queues = (Queue("a", quota=gpus(10), priority=1), Queue("b", quota=gpus(10), over_quota_weight=9))
    assert shares_of(queues, 100, {"a": 80, "b": 100}) == {"a": 80, "b": 20}
    assert shares_of(queues, 100, {"a": 200, "b": 100}) == {"a": 90, "b": 10}


def test_weight_zero_gets_nothing_beyond_its_quota() -> None:
    queues = (Queue("a", quota=gpus(10), over_quota_weight=0), Queue("b", quota=gpus(10)))
    assert shares_of(queues, 100, {"a": 100, "b": 30}) == {"a": 10, "b": 30}


def test_whole_units_leave_over_go_by_largest_remainder_then_in_order() -> None:
    assert divide(10, [10, 10, 10], [1, 1, 1], 1) == [4, 3, 3]
    assert divide(10, [10, 10, 10], [5, 3, 2], 1) == [5, 3, 2]
    assert divide(10_000, [9_000, 9_000], [2, 1], 1000) == [7_000, 3_000]
    assert divide(10_000, [500, 9_000], [1, 1], 1000) == [500, 9_000]
    assert divide(9_000, [2_500, 9_000], [1, 1], 1000) == [2_500, 6_500]


def test_shares_go_down_the_tree_and_limits_cut_what_is_asked_for() -> None:
    queues = (
        Queue("research", quota=gpus(60)),
        Queue("serving", quota=gpus(40)),
        Queue("vision", "research", quota=gpus(20)),
        Queue("text", "research", quota=gpus(40), limit=gpus(45)),
    )
    found = shares_of(queues, 100, {"vision": 100, "text": 100, "serving": 10})
    assert found == {"research": 90, "serving": 10, "vision": 45, "text": 45}


def test_more_owed_than_there_is_is_cut_in_proportion() -> None:
    queues = (Queue("a", quota=gpus(60)), Queue("b", quota=gpus(30)), Queue("c", quota=gpus(30)))
    assert shares_of(queues, 60, {"a": 60, "b": 30, "c": 30}) == {"a": 30, "b": 15, "c": 15}
    assert shares_of((Queue("a"), Queue("b")), 10, {"a": 30, "b": 4}) == {"a": 9, "b": 1}


def test_bad_trees_are_refused_by_name() -> None:
    with pytest.raises(PlacementError, match="queue a is there twice"):
        QueueTree((Queue("a"), Queue("a")))
    with pytest.raises(PlacementError, match="parent 'x' is not there"):
        QueueTree((Queue("a", "x"),))
    with pytest.raises(PlacementError, match="circle"):
        QueueTree((Queue("a", "b"), Queue("b", "a")))
    for weight in (-1, float("nan"), float("inf"), 1e-4, 1e7):
        with pytest.raises(PlacementError, match=re.escape(f"over_quota_weight is {weight}; 0, or 0.001 to 1,000,000")):
            Queue("a", over_quota_weight=weight)
    chain = tuple(Queue(f"q{at}", f"q{at - 1}" if at else "") for at in range(34))
    assert QueueTree(chain[:33]).paths["q32"][-1] == "q0"
    with pytest.raises(PlacementError, match="queue q33: at most 32 queues above"):
        QueueTree(chain)
    with pytest.raises(PlacementError, match="gpu_milli is -1"):
        Allowance(-1)


def trees() -> st.SearchStrategy[QueueTree]:
    """Trees of up to seven queues; the parent of each is one before it."""
    amount = st.one_of(st.none(), st.integers(0, 40).map(lambda count: count * 500))

    def queue(at: int) -> st.SearchStrategy[Queue]:
        return st.builds(
            Queue,
            name=st.just(f"q{at}"),
            parent=st.sampled_from(["", *(f"q{other}" for other in range(at))]),
            quota=st.builds(Allowance, amount, amount, amount),
            limit=st.builds(Allowance, amount, amount, amount),
            over_quota_weight=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
            priority=st.integers(0, 2),
        )

    return (
        st.integers(1, 7)
        .flatmap(lambda count: st.tuples(*(queue(at) for at in range(count))))
        .map(lambda queues: QueueTree(tuple(queues)))
    )


@given(
    tree=trees(),
    total=st.tuples(st.integers(0, 40), st.integers(0, 30_000), st.integers(0, 30_000)),
    asked=st.lists(st.tuples(*[st.integers(0, 30_000)] * 3), min_size=7, max_size=7),
)
def test_shares_are_never_more_than_there_is_or_is_asked_for(
    tree: QueueTree, total: Amounts, asked: list[Amounts]
) -> None:
    total = (total[0] * 1000, total[1], total[2])
    requests = {queue.name: asked[at] for at, queue in enumerate(tree.queues) if tree.is_leaf(queue.name)}
    found = fair_shares(tree, total, requests)
    wanted = requests_up(tree, requests)
    for parent in ("", *tree.by_name):
        children = tree.children[parent]
        have = total if parent == "" else found[parent]
        for kind in range(3):
            given_out = sum(found[child.name][kind] for child in children)
            assert given_out <= have[kind] or not children
            for child in children:
                share, want = found[child.name][kind], wanted[child.name][kind]
                quota = child.quota.amounts[kind]
                assert 0 <= share <= want
                owed = sum(min(each.quota.amounts[kind], wanted[each.name][kind]) for each in children)
                if owed <= have[kind]:
                    assert share >= min(quota, want)
            # Nothing is left over while somebody with a weight still asks for it.
            if children and given_out < have[kind]:
                for child in children:
                    full = found[child.name][kind] >= min(wanted[child.name][kind], UNLIMITED)
                    assert full or child.over_quota_weight == 0
