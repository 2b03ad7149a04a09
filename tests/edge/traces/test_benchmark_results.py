"""Result files of load generators: vLLM's benchmark, guidellm, AIPerf."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pointsman.core.model.errors import TraceError
from pointsman.edge.traces.formats import read_trace
from pointsman.edge.traces.loaded import LoadedTrace
from support.recorded import write_rows


def _document(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document, indent=1))
    return path


_VLLM: dict[str, object] = {
    "date": "20260131-120000",
    "model_id": "llama",
    "request_rate": 5.0,
    "duration": 3.0,
    "total_input_tokens": 30,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 2],
    "start_times": [100.5, 100.0, 101.0],
    "ttfts": [0.25, 0.0, 0.5],
    "itls": [[0.1, 0.2], [], [0.05]],
    "errors": ["", "Traceback:\n  ConnectionError: refused", ""],
}


def test_vllm(tmp_path: Path) -> None:
    loaded = read_trace(_document(tmp_path, _VLLM))
    assert loaded.format == "vllm-bench"
    assert [(r.at_ms, r.prompt_tokens, r.output_tokens, r.model) for r in loaded.trace.requests] == [
        (0, 10, 3, "llama"),
        (500, 30, 2, "llama"),
    ]
    first = loaded.observed[0]
    assert (first.ttft_ms, first.e2e_ms, first.tpot_ms) == pytest.approx((250, 550, 150))
    assert first.itl_ms == pytest.approx((100, 200))
    assert loaded.problems.describe() == [
        "1 of 3 rows are left out",
        "  request 2: it failed:   ConnectionError: refused",
    ]
    timed = read_trace(_document(tmp_path, _VLLM | {"latencies": [0.6, 0.0, 0.6]}))
    assert timed.observed[0].e2e_ms == pytest.approx(600)


def test_vllm_without_arrivals(tmp_path: Path) -> None:
    old = {key: value for key, value in _VLLM.items() if key != "start_times"}
    with pytest.raises(TraceError, match=r"no start_times.*--save-detailed"):
        read_trace(_document(tmp_path, old))
    at_once = read_trace(_document(tmp_path, old | {"request_rate": "inf"}))
    assert [request.at_ms for request in at_once.trace.requests] == [0, 0]
    assert "come at once" in at_once.problems.notes[0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_lens": None}, "holds means only; run the benchmark with --save-detailed"),
        ({"ttfts": [0.1]}, "ttfts has 1 entries, input_lens 3"),
        ({"itls": "none"}, "itls: expected"),
    ],
)
def test_vllm_results_that_cannot_be_used(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(_document(tmp_path, _VLLM | changed))


def test_vllm_results_in_one_file(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.json", [_VLLM, _VLLM])
    with pytest.raises(TraceError, match="it has 2 lines: keep one result in a file"):
        read_trace(path)


def test_vllm_negative_times(tmp_path: Path) -> None:
    loaded = read_trace(_document(tmp_path, _VLLM | {"ttfts": [-1.0, 0.0, 0.5]}))
    assert loaded.problems.named[0].text == "ttfts or itls: a time below 0"


def _guidellm_new(start_s: float, **changed: object) -> dict[str, object]:
    timings = {
        "request_start": start_s,
        "first_token_iteration": start_s + 0.5,
        "last_token_iteration": start_s + 2.5,
        "request_end": start_s + 2.6,
        "resolve_end": start_s + 2.7,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": "r",
        "info": {"conversation_id": "c", "timings": timings},
        "input_metrics": {"text_tokens": 100, "cached_tokens": 64},
        "output_metrics": {"text_tokens": 21},
        "prompt_tokens": 100,
        "output_tokens": 21,
    } | changed


def test_guidellm_of_now_and_then(tmp_path: Path) -> None:
    old = {
        "type_": "generative_text_response",
        "prompt_tokens": 40,
        "output_tokens": 5,
        "start_time": 1700000001.0,
        "first_token_time": 1700000001.25,
        "last_token_time": 1700000001.75,
        "end_time": 1700000001.8,
    }
    between = {
        "prompt_tokens": 41,
        "output_tokens": 5,
        "scheduler_info": {"request_timings": {"request_start": 1700000003.0, "first_iteration": 1700000003.5}},
    }
    report = {
        "metadata": {"version": 1},
        "benchmarks": [
            {"requests": {"successful": [_guidellm_new(1700000000.0), old], "incomplete": [{}], "errored": None}},
            {
                "requests": {"successful": [between], "errored": [{"error": "503"}]},
                "metrics": {"request_totals": {"successful": 9}},
            },
        ],
    }
    loaded = read_trace(_document(tmp_path, report))
    assert loaded.format == "guidellm"
    assert [(r.at_ms, r.prompt_tokens, r.output_tokens) for r in loaded.trace.requests] == [
        (0, 100, 21),
        (1000, 40, 5),
        (3000, 41, 5),
    ]
    assert [(o.ttft_ms, o.tpot_ms, o.cached_tokens) for o in loaded.observed] == [
        (500, 100, 64),
        (250, 125, None),
        (500, None, None),
    ]
    assert loaded.problems.describe() == [
        "2 benchmarks that ran one after the other are one trace",
        "the report holds a sample: 1 of 9 requests that succeeded",
        "2 of 5 rows are left out",
        "  request 3: it was not finished when the benchmark ended",
        "  request 5: it failed: 503",
    ]


def test_guidellm_requests_that_cannot_be(tmp_path: Path) -> None:
    rows = [
        _guidellm_new(1700000000.0),
        _guidellm_new(1700000000.0, first_token_iteration=1600000000.0),
        {"prompt_tokens": 1, "output_tokens": 1},
        _guidellm_new(1700000000.0, output_tokens="many"),
    ]
    loaded = read_trace(_document(tmp_path, {"benchmarks": [{"requests": {"successful": rows}}]}))
    assert [problem.text.split(",")[0] for problem in loaded.problems.named] == [
        "its first token comes before its start",
        "none of request_start_time",
        "output_tokens: expected a whole number",
    ]


def _aiperf(start_ms: int, turn: int = 0, session: str = "s", **changed: object) -> dict[str, object]:
    return {
        "metadata": {
            "session_num": 1,
            "x_request_id": "r",
            "x_correlation_id": session,
            "turn_index": turn,
            "request_start_ns": 1_759_813_207_000_000_000 + start_ms * 1_000_000,
            "request_end_ns": 1_759_813_207_000_000_000 + (start_ms + 300) * 1_000_000,
            "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
            "time_to_first_token": {"value": 0.25, "unit": "sec"},
            "request_latency": {"value": 297.5, "unit": "ms"},
            "inter_chunk_latency": {"value": [4.9, 5.3], "unit": "ms"},
        },
        "error": None,
    } | changed


def _read_aiperf(tmp_path: Path, *rows: object) -> LoadedTrace:
    return read_trace(write_rows(tmp_path / "profile_export.jsonl", rows))


def test_aiperf(tmp_path: Path) -> None:
    loaded = _read_aiperf(tmp_path, _aiperf(1000, 1), _aiperf(0), _aiperf(50, session="alone"))
    assert loaded.format == "aiperf"
    assert [(r.at_ms, r.session, r.after, r.gap_ms) for r in loaded.trace.requests] == [
        (0, "s", None, 0),
        (50, None, None, 0),
        (1000, "s", 0, 700),
    ]
    first = loaded.observed[0]
    assert (first.ttft_ms, first.e2e_ms, first.prompt_tokens, first.output_tokens) == (250, 297.5, 550, 9)


def test_aiperf_rows_that_failed(tmp_path: Path) -> None:
    cancelled = _aiperf(0)
    cancelled["metadata"] = {"request_start_ns": 1, "was_cancelled": True}
    loaded = _read_aiperf(
        tmp_path,
        _aiperf(0),
        _aiperf(1, error={"code": 499, "type": "T", "message": "cut"}, metrics={}),
        cancelled,
        _aiperf(2, metrics={"input_sequence_length": {"value": 5, "unit": "tokens"}}),
        _aiperf(3, metrics={"time_to_first_token": {"value": 5, "unit": "parsec"}}),
    )
    assert [problem.text for problem in loaded.problems.named] == [
        "it failed: cut",
        "it was cancelled",
        "no metrics.output_sequence_length",
        "metrics.time_to_first_token.unit: 'parsec' is no unit of time",
    ]
