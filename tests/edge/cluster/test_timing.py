from __future__ import annotations

import random

from pointsman.edge.cluster.timing import ProbeTiming


def test_answers_may_take_less_than_the_interval():
    assert ProbeTiming(interval_s=5.0).timeout_s == 4.0


def test_pauses_grow_from_the_first_retry_to_the_interval():
    timing = ProbeTiming(interval_s=5.0, first_retry_s=0.5, jitter=0.0)

    pauses = [timing.pause_s(failures, random.Random(1)) for failures in (0, 1, 2, 3, 4, 5, 10_000)]

    assert pauses == [5.0, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_jitter_spreads_within_its_share():
    timing = ProbeTiming(interval_s=10.0, jitter=0.1)
    rng = random.Random(7)

    pauses = [timing.pause_s(0, rng) for _ in range(200)]

    assert 9.0 <= min(pauses) < 9.5
    assert 10.5 < max(pauses) <= 11.0
