"""The index's benchmark, in small: that it still speaks the index's language."""

from __future__ import annotations

import gc

import pytest

from index import Options, come_and_go, fill


@pytest.mark.parametrize("workers_per_block", [1, 8])
def test_fill(workers_per_block: int) -> None:
    try:
        filled = fill(16_000, workers_per_block)
    finally:
        gc.enable()  # the benchmark runs in a process of its own and turns it off
    assert 0 < filled["pairs"] <= 16_000
    assert filled["us_per_pair"] > 0


def test_come_and_go() -> None:
    """The bound of what is held is the capacity of the workers, however many prompts came; some leave on the way."""
    came = come_and_go(Options(prompts=20_000, capacity_blocks=400))
    assert len(came["rss_mb"]) == 10
    assert 0 < came["blocks"] <= 8 * 400 * 2
