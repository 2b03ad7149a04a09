from __future__ import annotations

import random

import pytest

from peers_policies.costs import Additive, LMetric, Priced
from peers_policies.guarded import AibrixPrefix, Guard, SmgCacheAware
from peers_policies.llmd import LlmdEstimated, LlmdLoad, LlmdPrecise
from peers_policies.mooncake import LocalCacheAware, ShortestQueue
from peers_policies.sticky import HashOfGroup
from pointsman.core.model.blocks import BlockKeys, BlockUnit
from pointsman.core.model.request import Request
from pointsman.core.model.view import Exclusion, FleetView
from pointsman.core.policies.policy import NO_TIMING, Policy
from pointsman.core.timing.step import StepCoefficients

STEP = StepCoefficients(60.0, 0.05, 0.06, 0.24, 2e-6)
ALL = (
    *(LlmdPrecise, LlmdLoad, LlmdEstimated, SmgCacheAware, AibrixPrefix, Guard, LMetric, Additive, HashOfGroup),
    lambda: Priced(STEP, 1.0),
    lambda: ShortestQueue(STEP),
    lambda: LocalCacheAware(STEP),
)
"""Makers of every policy."""


def _request(tokens: int = 1_000, keys: range = range(62)) -> Request:
    return Request("r", "m", 0.0, tokens, BlockKeys(tuple(keys), 16, BlockUnit.TOKENS, tokens))


def _view(count: int = 3, **columns: list[int]) -> FleetView:
    columns = {"kv_capacity_tokens": [100_000] * count, **columns}
    return FleetView.of([f"e{number}/0" for number in range(count)], **columns)


def _chosen(policy: Policy, view: FleetView, request: Request | None = None, now_ms: float = 0.0) -> int | None:
    return policy.decide(request or _request(), view, NO_TIMING, now_ms, random.Random(1)).chosen_row


@pytest.mark.parametrize("make", ALL)
def test_only_eligible_workers_are_chosen(make: type) -> None:
    excluded = [Exclusion.DRAINING, Exclusion.NONE, Exclusion.UNREACHABLE]
    view = _view(exclusion=excluded, cached_tokens=[900, 0, 900], running=[0, 90, 0], kv_used_tokens=[0, 90_000, 0])
    assert _chosen(make(), view) == 1
    assert _chosen(make(), _view(exclusion=[Exclusion.DRAINING] * 3)) is None


def test_precise_weighs_the_match_against_kv_use_and_queue() -> None:
    # 3 · .5 = 1.5 of the match, against 2 · .5 = 1 of KV use …
    assert _chosen(LlmdPrecise(), _view(cached_tokens=[500, 0, 0], kv_used_tokens=[50_000, 0, 50_000])) == 0
    # … and 2 · .5 + 2 · 1 with the longest queue.
    view = _view(cached_tokens=[500, 0, 0], kv_used_tokens=[50_000, 0, 50_000], queued=[4, 0, 0])
    assert _chosen(LlmdPrecise(), view) == 1


def test_load_knows_no_cache() -> None:
    assert _chosen(LlmdLoad(), _view(cached_tokens=[900, 0, 0], kv_used_tokens=[10, 9, 10])) == 1


def test_estimated_knows_what_it_sent_and_forgets_the_oldest() -> None:
    policy = LlmdEstimated()
    idle = _view(count=2, kv_used_tokens=[1, 0])
    first = _request(keys=range(256))
    assert _chosen(policy, idle, first) == 1
    # The same beginning sticks, although the engine is fuller by far now and no engine reports a cached token.
    fuller = _view(count=2, kv_used_tokens=[0, 90_000])
    assert _chosen(policy, fuller, first) == 1
    # Only 4,096 tokens are looked at: what comes after them makes no difference.
    assert _chosen(policy, fuller, _request(8_000, range(500))) == 1
    for number in range(1, 123):  # 122 others of 256 blocks push it out of 31,250
        _chosen(policy, idle, _request(keys=range(number * 256, (number + 1) * 256)))
    assert _chosen(policy, fuller, first) == 0


def test_cache_aware_takes_the_match_unless_loads_are_uneven() -> None:
    cached = {"cached_tokens": [400, 0, 0]}
    assert _chosen(SmgCacheAware(), _view(running=[100, 60, 50], **cached)) == 0
    assert _chosen(SmgCacheAware(), _view(running=[120, 60, 50], **cached)) == 2
    assert _chosen(SmgCacheAware(), _view(running=[10, 6, 5], cached_tokens=[300, 0, 0])) == 2


def test_aibrix_and_guard_have_bounds_of_their_own() -> None:
    cached = {"cached_tokens": [400, 400, 0]}
    assert _chosen(AibrixPrefix(), _view(running=[16, 15, 0], **cached)) == 1
    assert _chosen(AibrixPrefix(), _view(running=[17, 15, 0], **cached)) == 2
    assert _chosen(Guard(), _view(running=[20, 12, 10], **cached)) == 1
    assert _chosen(Guard(), _view(running=[20, 40, 10], **cached)) == 0


def test_costs_add_or_multiply() -> None:
    view = _view(cached_tokens=[900, 0, 0], running=[9, 0, 0], prefill_tokens=[0, 0, 5], kv_used_tokens=[500, 0, 0])
    # (0 + 100) · 10 and (0 + 1,000) · 1 are equal, (5 + 1,000) · 1 is more.
    assert LMetric().decide(_request(), view, NO_TIMING, 0, random.Random(1)).scores.tolist() == [1000, 1000, 1005]
    assert Additive().decide(_request(), view, NO_TIMING, 0, random.Random(1)).scores.tolist() == [
        (100 + 500 + 100) / 16,
        2_000 / 16,
        2_005 / 16,
    ]


def test_priced_counts_evictions_once_a_worker_was_filled() -> None:
    policy = Priced(STEP, 100.0, output_tokens=10)
    request = _request()
    view = _view(count=1, kv_capacity_tokens=[1_500])
    empty = float(policy.decide(request, view, NO_TIMING, 0, random.Random(1)).scores[0])
    full = float(policy.decide(request, view, NO_TIMING, 0, random.Random(1)).scores[0])
    assert full - empty == pytest.approx(100 * 0.24 * 1_000 * 0.8)


def test_prefill_nodes_are_taken_by_their_queues_in_time() -> None:
    long, short = _request(10_000), _request(100)
    queue, local = ShortestQueue(STEP), LocalCacheAware(STEP)
    view = _view(count=2)
    for policy in (queue, local):
        first = _chosen(policy, view, long)
        assert first is not None
        assert [_chosen(policy, view, short) for _ in range(5)] == [1 - first] * 5
        # 60 + .24 · 10,000 + 2e-6 · 10^8 = 2,660 ms later nobody waits there, and a match decides.
        cached = [0, 0]
        cached[first] = 90
        assert _chosen(policy, _view(count=2, cached_tokens=cached), short, now_ms=2_660.0) in (
            (0, 1) if policy is queue else (first,)
        )


def test_a_group_has_one_worker() -> None:
    policy = HashOfGroup()
    groups = [range(number * 100, number * 100 + 5) for number in range(4)]
    rows = [_chosen(policy, _view(running=[9, 0, 0]), _request(keys=keys)) for keys in groups]
    assert rows == [0, 1, 2, 0]
    assert [_chosen(policy, _view(), _request(keys=keys)) for keys in groups] == rows
