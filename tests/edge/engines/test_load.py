from __future__ import annotations

from dataclasses import replace

import pytest

from pointsman.edge.engines.load import LoadReading

BEFORE = LoadReading(0, 1, 0, computed_tokens_total=100, cached_tokens_total=50, preemptions_total=2, started_s=1000.0)


@pytest.mark.parametrize(
    "change",
    [
        {"computed_tokens_total": 99},
        {"cached_tokens_total": 0},
        {"preemptions_total": 1},
        {"started_s": 1060.0},
        {"started_s": 1060.0, "computed_tokens_total": 200},
    ],
)
def test_signs_of_a_restart(change):
    assert replace(BEFORE, **change).shows_restart_since(BEFORE)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"running": 0, "kv_use": 0.0},
        {"computed_tokens_total": 101, "cached_tokens_total": 60},
        {"computed_tokens_total": None, "started_s": None},
        {"started_s": 1000.4},
    ],
)
def test_an_engine_that_just_goes_on(change):
    assert not replace(BEFORE, **change).shows_restart_since(BEFORE)
