from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.source import ReadOptions
from support.recorded import recorded, write_rows


def _row(number: int, **changed: object) -> dict[str, object]:
    row: dict[str, object] = {
        "request_id": f"bench-{number}",
        "input_toks": 100 + number,
        "output_toks": 11,
        "arrival_time": 1.7e9 + number,
        "queued_ts": 500.0 + number,
        "scheduled_ts": 500.25 + number,
        "first_token_ts": 500.5 + number,
        "last_token_ts": 501.5 + number,
    }
    return row | changed


@pytest.mark.parametrize("name", ["requests.jsonl", "requests.jsonl.gz"])
def test_times_are_relative_to_the_first_arrival(tmp_path: Path, name: str) -> None:
    loaded = read_trace(write_rows(tmp_path / name, [_row(1), _row(0), _row(3)]))
    assert (loaded.format, loaded.trace.name) == ("vllm-requests", "requests")
    assert [request.at_ms for request in loaded.trace.requests] == [0.0, 1000.0, 3000.0]
    assert [request.prompt_tokens for request in loaded.trace.requests] == [100, 101, 103]
    last = loaded.observed[2]
    assert (last.arrival_ms, last.scheduled_ms, last.first_token_ms, last.last_token_ms) == (3000, 3250, 3500, 4500)
    assert (last.ttft_ms, last.e2e_ms, last.tpot_ms) == (500.0, 1500.0, 100.0)
    assert not loaded.problems.describe()


def test_the_two_clocks_meet_at_the_request_that_was_queued_soonest(tmp_path: Path) -> None:
    rows = [_row(0, queued_ts=500.02), _row(1), _row(2, queued_ts=502.1)]
    loaded = read_trace(write_rows(tmp_path / "r.jsonl", rows))
    assert [request.at_ms for request in loaded.trace.requests] == [0.0, 1000.0, 2000.0]
    assert [observed.ttft_ms for observed in loaded.observed] == [500.0, 500.0, 500.0]


def test_rows_that_cannot_be_are_named_and_counted(tmp_path: Path) -> None:
    rows = [_row(0), "{", _row(1, first_token_ts=499.0), _row(2, output_toks=0), _row(3, input_toks="7"), _row(4)]
    loaded = read_trace(write_rows(tmp_path / "r.jsonl", rows))
    assert len(loaded.trace) == len(loaded.observed) == 2
    assert (loaded.problems.rows, loaded.problems.left_out) == (6, 4)
    assert {problem.line: problem.text.split(":")[0] for problem in loaded.problems.named} == {
        2: "is no JSON",
        3: "first_token_ts",
        4: "its output has 0 tokens; at least 1 and at most 2147483647 are expected",
        5: "input_toks",
    }


def test_strict_ends_at_the_first_bad_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [_row(0), _row(1, queued_ts=None)])
    with pytest.raises(TraceError, match=r"r.jsonl, line 2: queued_ts: expected `float`"):
        read_trace(path, options=ReadOptions(strict=True))


@pytest.mark.parametrize(
    ("gpu", "ttft_ms", "tpot_ms", "e2e_ms"),
    [("RTX4090", 65456.6, 32.4, 86578.3), ("RTXPRO6000", 7097.2, 32.5, 28200.7)],
)
def test_the_published_means_come_out(gpu: str, ttft_ms: float, tpot_ms: float, e2e_ms: float) -> None:
    # Published figures count from the queue, ours from a little before.
    seen = read_trace(recorded(f"vllm-ground-truth/{gpu}/Llama-3.1-8B/requests.jsonl")).observed
    assert len(seen) == 300
    assert sum(row.ttft_ms or 0 for row in seen) / 300 == pytest.approx(ttft_ms, rel=0.004)
    assert sum(row.tpot_ms or 0 for row in seen) / 300 == pytest.approx(tpot_ms, abs=0.1)
    assert sum(row.e2e_ms or 0 for row in seen) / 300 == pytest.approx(e2e_ms, rel=0.002)
