"""Tables of the benchmark of several front ends, and that the results that are kept hold what is promised."""

from __future__ import annotations

import json

import replicas
from harness.report import RESULTS


def test_kept_results_hold_what_is_promised() -> None:
    kept = json.loads((RESULTS / "replicas.json").read_text())
    found = replicas.summary(kept)
    assert found == kept["summary"]
    assert found["least_hit_rate_ratio"] >= 0.95
    assert found["most_to_mean"]["192"] <= 1.5
    assert found["talking"]["telling_us"] < 100
    text = replicas.markdown(kept)
    assert text in replicas.PAGE.read_text()
    assert text.count("| conversations, `") == len(replicas.POLICIES)


def test_what_talking_costs_is_measured_on_whole_lives() -> None:
    found = replicas.talking_us(20)
    assert found["payloads"] == 0.1
    assert 512 < found["bytes"] < 1024  # 64 keys of 8 bytes, and a little
