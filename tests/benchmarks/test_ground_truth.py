"""The table of recorded runs says which bars are reached."""

from __future__ import annotations

import ground_truth


def _found(tpot_p90: float) -> dict[str, object]:
    errors = {"E2E": [1.0, -7.9, 2.0], "TPOT": [1.0, 2.0, tpot_p90], "TTFT": [-19.0, 3.0, 4.0]}
    return {
        "coefficients": {"a": 11.0, "b": 0.1, "c": 0.2, "d": 0.04},
        "measured_ms": {name: [1000.0, 900.0, 2000.0] for name in ground_truth.BARS},
        "calibrated_error_percent": errors,
        "uncalibrated_error_percent": {name: [50.0, 50.0, 50.0] for name in ground_truth.BARS},
    }


def test_each_figure_must_be_within_its_bar() -> None:
    text = ground_truth.markdown({"runs": {"one": _found(4.9), "other": _found(-5.1)}})
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| o")}
    assert "| reached |" in lines["one TPOT"]
    assert "| **not reached** |" in lines["other TPOT"]
    assert all("| reached |" in lines[name] for name in ("one E2E", "one TTFT", "other E2E", "other TTFT"))
