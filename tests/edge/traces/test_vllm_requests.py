from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.problems import Problems
from pointsman.edge.traces.vllm_requests import read_vllm_requests

DATA = os.environ.get("POINTSMAN_DATA")


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


def _write(path: Path, rows: list[object]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (path.write_bytes if path.suffix != ".gz" else lambda raw: path.write_bytes(gzip.compress(raw)))(text.encode())
    return path


@pytest.mark.parametrize("name", ["requests.jsonl", "requests.jsonl.gz"])
def test_times_are_relative_to_the_first_arrival_and_measured_from_the_queue(tmp_path: Path, name: str) -> None:
    loaded = read_vllm_requests(_write(tmp_path / name, [_row(1), _row(0), _row(3)]), Problems(name))
    assert [request.at_ms for request in loaded.trace.requests] == [0.0, 1000.0, 3000.0]
    assert [request.prompt_tokens for request in loaded.trace.requests] == [100, 101, 103]
    last = loaded.observed[2]
    assert (last.arrival_ms, last.scheduled_ms, last.first_token_ms, last.last_token_ms) == (3000, 3250, 3500, 4500)
    assert (last.ttft_ms, last.e2e_ms, last.tpot_ms) == (500.0, 1500.0, 100.0)
    assert not loaded.problems.describe()


def test_rows_that_cannot_be_are_named_and_counted(tmp_path: Path) -> None:
    rows = [_row(0), "{", _row(1, first_token_ts=499.0), _row(2, output_toks=0), _row(3, input_toks="7"), _row(4)]
    problems = Problems("f")
    loaded = read_vllm_requests(_write(tmp_path / "r.jsonl", rows), problems)
    assert len(loaded.trace) == len(loaded.observed) == 2
    assert (problems.rows, problems.left_out) == (6, 4)
    assert [(problem.line, problem.text.split(":")[0]) for problem in problems.named] == [
        (2, "is no JSON"),
        (3, "first_token_ts"),
        (4, "its output has 0 tokens; at least 1 and at most 2147483647 are expected"),
        (5, "input_toks"),
    ]


def test_strict_ends_at_the_first_bad_row(tmp_path: Path) -> None:
    path = _write(tmp_path / "r.jsonl", [_row(0), _row(1, queued_ts=None)])
    with pytest.raises(TraceError, match=r"^f, line 2: queued_ts: expected `float`"):
        read_vllm_requests(path, Problems("f", strict=True))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "none of its 0 rows"), (b"[1]\n", "none of its 1 rows is a request; line 1: expected")],
)
def test_a_file_without_requests_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_vllm_requests(path, Problems("f"))


def test_a_cut_off_gzip_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(_row(n)) + "\n" for n in range(50)).encode())[:-20])
    with pytest.raises(TraceError, match="damaged or cut off"):
        read_vllm_requests(path, Problems("f"))


@pytest.mark.skipif(DATA is None, reason="POINTSMAN_DATA is not set: recorded runs are not at hand")
@pytest.mark.parametrize(
    ("gpu", "ttft", "tpot", "e2e"), [("RTX4090", 65456.6, 32.4, 86578.3), ("RTXPRO6000", 7097.2, 32.5, 28200.7)]
)
def test_the_published_means_come_out(gpu: str, ttft: float, tpot: float, e2e: float) -> None:
    path = Path(DATA or "") / "vllm-ground-truth" / gpu / "Llama-3.1-8B" / "requests.jsonl"
    seen = read_vllm_requests(path, Problems(str(path))).observed
    assert len(seen) == 300
    assert sum(row.ttft_ms or 0 for row in seen) / 300 == pytest.approx(ttft, abs=0.1)
    assert sum(row.tpot_ms or 0 for row in seen) / 300 == pytest.approx(tpot, abs=0.1)
    assert sum(row.e2e_ms or 0 for row in seen) / 300 == pytest.approx(e2e, abs=0.1)
