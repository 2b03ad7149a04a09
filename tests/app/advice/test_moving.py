"""What is said of KV that moves by request, from measures that are made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pointsman.app.advice.choice import DECIDES_MOVING, compared
from pointsman.app.advice.findings import APART, MOVING, TOGETHER
from pointsman.app.advice.fleet_words import Apart
from pointsman.app.advice.fleets import Fleet
from pointsman.app.advice.moving_words import by_request, moved_share, moving


@dataclass
class Found:
    """Those of the findings that are looked at."""

    moving: dict[str, Any] = field(default_factory=dict)
    moving_comparisons: list[Any] = field(default_factory=list)
    together: Fleet = field(default=Fleet("3 workers", ()))
    split: Fleet | None = field(default=Fleet("1:2", ()))
    split_policy: str = "kv"


def found(ttft_ms: float, e2e_ms: float = 5_000.0, apart: float = 0.2, fetched: float = 0.1) -> Any:
    """P50 TTFT and E2E where KV moves, beside 400 ms and 5 s where it stays, under five seeds."""

    def runs(ttft_ms: float, e2e_ms: float, apart: float = 0.0, fetched: float = 0.0) -> dict[int, dict[str, float]]:
        # Ratios between cases hardly vary from seed to seed.
        return {
            seed: {
                "goodput_share": 1.0,
                "ttft_p50_ms": ttft_ms * (1 + seed / 50),
                "ttft_p99_ms": 2_000.0 * (1 + seed / 50),
                "e2e_p50_ms": e2e_ms * (1 + seed / 50),
                "itl_p99_ms": 30.0,
                "output_tokens_s": 100.0,
                "apart_share": apart,
                "fetched_share": fetched,
            }
            for seed in range(5)
        }

    cases = {
        TOGETHER: runs(400.0, 5_000.0),
        MOVING: runs(ttft_ms, e2e_ms, apart, fetched),
        APART: runs(900.0, 5_000.0, 0.4),
    }
    return Found(cases, compared(cases, DECIDES_MOVING))


@pytest.mark.parametrize(("ttft_ms", "answer"), [(200.0, Apart.YES), (401.0, Apart.TIE), (800.0, Apart.NO)])
def test_the_first_measure_that_tells_them_apart_decides(ttft_ms: float, answer: Apart) -> None:
    assert by_request(found(ttft_ms)) is answer


def test_what_moved_and_what_came_of_it_is_told() -> None:
    findings = found(200.0)
    assert moved_share(findings) == pytest.approx(0.3)
    first, second = moving(findings)
    assert "on 3 workers for both stages 20 % of the prompts are computed elsewhere and 10 % fetched in part" in first
    assert "P50 TTFT 50" in first
    assert "lower" in first
    assert second.startswith("On 1:2 it has 40 % of the prompts computed apart; against workers for both stages: ")
    assert "higher" in second


def test_gains_and_losses_stand_side_by_side() -> None:
    first, _ = moving(found(200.0, 10_000.0))
    assert "lower, but P50 E2E 100" in first


def test_kv_that_hardly_moves_is_no_difference() -> None:
    first, _ = moving(found(400.0, apart=0.001, fetched=0.0))
    assert "KV hardly ever moves between 3 workers for both stages" in first


def test_a_split_by_the_policy_that_decides_is_not_compared_a_second_time() -> None:
    findings = found(401.0)
    findings.split_policy = "cost"
    assert moving(findings)[1] == "On 1:2 it decides by request, too: 40 % of the prompts are computed apart."
    # Where KV that moves is better on workers for both stages as well, the split has to be compared with that.
    findings = found(200.0)
    findings.split_policy = "cost"
    assert "against workers for both stages: P50 TTFT" in moving(findings)[1]


def test_nothing_is_said_of_what_was_not_simulated() -> None:
    nothing: Any = Found()
    assert by_request(nothing) is None
    assert moved_share(nothing) is None
    assert moving(nothing) == []
