from __future__ import annotations

import pytest

from pointsman.core.engine_model.busy import BusyShare


def test_an_engine_that_always_computes_is_busy_and_one_that_stopped_is_not_for_long() -> None:
    busy = BusyShare()
    assert busy.share(500.0) == 0
    for step in range(100):
        busy.ran(100.0 * step, 100.0 * (step + 1))
    assert busy.share(10_000.0) > 0.99
    assert 0.3 < busy.share(11_000.0) < 0.4
    assert busy.share(20_000.0) < 0.01


def test_half_of_the_time_is_half() -> None:
    busy = BusyShare()
    for step in range(1000):
        busy.ran(20.0 * step, 20.0 * step + 10.0)
    assert busy.share(20_000.0) == pytest.approx(0.5, abs=0.02)


def test_what_it_computes_now_counts_and_looking_changes_nothing() -> None:
    busy = BusyShare()
    assert busy.share(1_000.0, 0.0) == pytest.approx(0.632, abs=0.001)
    assert busy.share(1_000.0) == 0
    busy.ran(0.0, 1_000.0)
    assert busy.share(1_000.0) == pytest.approx(0.632, abs=0.001)
    assert busy.share(2_000.0, 1_000.0) == pytest.approx(0.865, abs=0.001)
