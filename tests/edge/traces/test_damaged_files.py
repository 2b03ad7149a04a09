"""Whatever is in a file: a trace that can be, or an error that names the file. Nothing else."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.core.model.errors import TraceError
from pointsman.core.workload.reuse import reuse
from pointsman.edge.traces.formats import FORMATS, read_trace
from pointsman.edge.traces.source import ReadOptions

_GOOD: dict[str, list[object]] = {
    "pointsman": [
        {"pointsman_trace": 1, "name": "n", "block_tokens": 4, "requests": 2},
        {"at_ms": 0.0, "prompt_tokens": 8, "output_tokens": 4, "blocks": [[0, 2]], "answer": [[2, 1]], "session": "s"},
        {
            "at_ms": 1.0,
            "prompt_tokens": 9,
            "output_tokens": 4,
            "like": [0, 2],
            "blocks": [[9, 1]],
            "after": 0,
            "gap_ms": 1.0,
        }
        | {
            "observed": {
                "arrival_ms": 1,
                "first_token_ms": 2,
                "last_token_ms": 3,
                "prompt_tokens": 9,
                "output_tokens": 4,
            }
        },
    ],
    "decision-log": [
        {"pointsman_decisions": 1},
        {
            "id": "a",
            "at_ms": 1.7e12,
            "model": "m",
            "status": "finished",
            "http": 200,
            "prompt_tokens": 40,
            "prompt_from": "engine",
            "output_tokens": 3,
            "block_unit": "tokens",
            "block_size": 16,
            "blocks": "AAAAAAAABBBBBBBB",
            "first_token_ms": 5.0,
            "last_token_ms": 9.0,
        },
    ],
    "mooncake": [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 5, "input_length": 700, "output_length": 5, "hash_ids": [0, 2]},
    ],
    "agentic": [
        {
            "id": "s",
            "block_size": 4,
            "tool_tokens": 4,
            "system_tokens": 4,
            "requests": [
                {"t": 0, "in": 12, "out": 3, "keep": 0, "new": [[1, 3]], "think_time": 0.0, "api_time": 1.0},
                {"t": 2, "in": 16, "out": 3, "keep": 3, "new": [[4, 1]], "ttft": 0.5, "m": "m"},
                {"t": 2, "type": "subagent", "requests": [{"t": 0, "in": 9, "out": 2, "keep": 0, "new": [[7, 1]]}]},
            ],
        }
    ],
    "access-log": [
        {"startTime": 1700000000.5, "endTime": 1700000001.5, "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        {"time_iso8601": "2023-11-14T22:13:20Z", "prompt_tokens": "5", "completion_tokens": "6", "request_time": "0.5"},
    ],
    "vllm-bench": [
        {
            "input_lens": [1, 2],
            "output_lens": [1, 2],
            "start_times": [0.5, 0.25],
            "ttfts": [0.1, 0.2],
            "itls": [[], [0.1]],
            "errors": ["", ""],
            "latencies": [0.1, 0.3],
        }
    ],
    "vllm-requests": [
        {"input_toks": 1, "output_toks": 2, "arrival_time": 1.0, "queued_ts": 1.5, "scheduled_ts": 1.5}
        | {"first_token_ts": 2.0, "last_token_ts": 3.0}
    ],
    "vllm-workload": [{"input_toks": 17, "output_toks": 2, "arrival_time_ns": 5, "block16_ids": [0, 1]}],
    "guidellm": [
        {
            "benchmarks": [
                {
                    "requests": {
                        "successful": [
                            {
                                "request_start_time": 5.0,
                                "prompt_tokens": 3,
                                "output_tokens": 4,
                                "info": {"timings": {"first_token_iteration": 6.0, "last_token_iteration": 7.0}},
                            }
                        ],
                        "errored": [{"error": "x"}],
                    }
                }
            ]
        }
    ],
    "aiperf": [
        {
            "metadata": {
                "request_start_ns": 10**18,
                "request_end_ns": 10**18 + 5,
                "x_correlation_id": "a",
                "turn_index": 1,
            },
            "metrics": {
                "input_sequence_length": {"value": 5, "unit": "tokens"},
                "output_sequence_length": {"value": 5, "unit": "tokens"},
                "time_to_first_token": {"value": 5, "unit": "ms"},
            },
            "error": None,
        }
    ],
    "azure": ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.6805900,374,44"],
    "ramp-csv": ["timestamp_ms,prompt_len,output_len", "6011,178,8"],
}
_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1, 2**31, 2**63, 10**30, 1e308, -1e308, 1e-308]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=4),
    st.sampled_from(["-1", "1e999", "nan", "2023-02-31T00:00:00", "9999-12-31T23:59:59-23:59", "0001-01-01", "[", ","]),
    st.lists(st.integers(-2, 3), max_size=3),
    st.just({}),
    st.just([[0, 10**15]]),
    st.just([[-5, 2], [2**63, 1]]),
)


def _places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


def _damage(draw: st.DrawFn, rows: list[object]) -> list[object]:
    rows = copy.deepcopy(rows)
    for _ in range(draw(st.integers(1, 3))):
        places = [place for place in _places(rows) if place]
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        parent: object = rows
        for key in path:
            parent = parent[key]  # type: ignore[index]
        if draw(st.integers(0, 4)) == 0:
            del parent[last]  # type: ignore[attr-defined]
        else:
            parent[last] = copy.deepcopy(draw(_VALUES))  # type: ignore[index]
    return rows


@st.composite
def _files(draw: st.DrawFn, name: str) -> bytes:
    rows = _GOOD[name]
    if draw(st.integers(0, 3)):
        rows = _damage(draw, rows)
    raw = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()
    if draw(st.integers(0, 3)) == 0 and raw:
        place = draw(st.integers(0, len(raw) - 1))
        raw = raw[:place] + draw(st.binary(max_size=3)) + raw[place + draw(st.integers(0, 5)) :]
    return raw


@pytest.mark.parametrize("name", sorted(_GOOD))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_damaged_file(name: str, data: st.DataObject) -> None:
    raw = data.draw(_files(name))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(raw)
        for strict in (False, True):
            try:
                loaded = read_trace(file, name, ReadOptions(strict=strict))
            except TraceError as error:
                assert str(file) in str(error)  # noqa: PT017
                continue
            assert len(loaded.trace) + loaded.problems.left_out == loaded.problems.rows
            assert len(loaded.observed) in (0, len(loaded.trace))
            if strict:
                assert not loaded.problems.left_out
            reuse(loaded.trace)


@pytest.mark.parametrize("name", sorted(_GOOD))
def test_the_files_are_good_before_they_are_damaged(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in _GOOD[name]))
    loaded = read_trace(file)
    assert loaded.format == name
    assert loaded.problems.left_out == (1 if name == "guidellm" else 0)


def test_every_format_that_is_a_file_is_damaged_here() -> None:
    assert set(_GOOD) == set(FORMATS) - {"servegen"}
