"""The bucket: never more than the limit in any window, exact waits, nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pointsman.core.limits.bucket import Bucket

STEPS = st.lists(st.tuples(st.floats(0, 90_000), st.floats(0.01, 400)), min_size=1, max_size=60)


@given(st.integers(1, 10_000), st.sampled_from([0.5, 1.0, 10.0, 60.0]), STEPS)
@example(60, 60.0, [(0, 60), (0, 1), (1000, 1)])
def test_in_no_window_passes_more_than_the_limit_and_what_is_saved_up(per_minute, saved_s, steps) -> None:
    bucket, now = Bucket(per_minute, saved_s, 0.0), 0.0
    passed = []
    for pause, amount in steps:
        now += pause
        amount = min(amount, bucket.capacity)
        if bucket.wait_ms(amount, now) == 0.0:
            bucket.take(amount, now)
            passed.append((now, amount))
    for first in range(len(passed)):
        whole = 0.0
        for at, amount in passed[first:]:
            whole += amount
            allowed = bucket.capacity + (at - passed[first][0]) * per_minute / 60_000
            assert whole <= allowed + 1e-3


@given(st.integers(1, 10_000), st.sampled_from([0.5, 10.0, 60.0]), STEPS, st.floats(0.01, 1e6))
def test_after_exactly_the_wait_it_passes_and_not_before(per_minute, saved_s, steps, wanted) -> None:
    bucket, now = Bucket(per_minute, saved_s, 0.0), 0.0
    for pause, amount in steps:
        now += pause
        bucket.take(amount, now)
    wait = bucket.wait_ms(wanted, now)
    assert wait < float("inf")
    if wait > 1.0:
        assert bucket.wait_ms(wanted, now + 0.9 * wait) > 0
    assert bucket.wait_ms(wanted, now + wait) == 0.0


def test_what_is_larger_than_the_bucket_passes_when_it_is_full_and_is_paid_back() -> None:
    bucket = Bucket(60, 60.0, 0.0)
    assert bucket.wait_ms(600, 0.0) == 0.0
    bucket.take(600, 0.0)
    assert bucket.level(0.0) == -540
    assert bucket.wait_ms(1, 0.0) == 541_000


def test_what_is_given_back_never_makes_it_more_than_full() -> None:
    bucket = Bucket(60, 60.0, 0.0)
    bucket.take(-100, 0.0)
    assert bucket.level(0.0) == 60
    bucket.take(10, 0.0)
    bucket.lower_to(20, 0.0)
    assert bucket.level(1000.0) == 21


def test_time_never_runs_back() -> None:
    bucket = Bucket(60, 60.0, 10_000.0)
    bucket.take(60, 10_000.0)
    assert bucket.level(5_000.0) == 0
    assert bucket.level(11_000.0) == pytest.approx(1)


def test_a_small_limit_lets_one_through_at_a_time() -> None:
    bucket = Bucket(2, 1.0, 0.0)
    assert bucket.capacity == 1
    bucket.take(1, 0.0)
    assert bucket.wait_ms(1, 0.0) == 30_000
